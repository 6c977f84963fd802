"""The import rules: layers hold, the core stands alone, the gateway process loads no GPU code."""

import subprocess
import sys
from pathlib import Path

import pytest
from importlinter.cli import lint_imports

ROOT = Path(__file__).parent.parent.parent


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120
    )


def _modules_under(folder: Path, above: Path) -> list[str]:
    names = []
    for file in sorted(folder.rglob("*.py")):
        parts = file.relative_to(above).with_suffix("").parts
        if parts[-1] != "__main__":
            names.append(".".join(parts).removesuffix(".__init__"))
    return names


def test_import_contracts_hold(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    status = lint_imports(config_filename="pyproject.toml", no_cache=True)
    assert status == 0, capsys.readouterr().out


def test_core_and_ports_load_without_any_third_party_module() -> None:
    names = [*_modules_under(ROOT / "governor" / "core", ROOT), "governor.ports"]
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import {', '.join(names)}"
    # -S leaves site-packages out: a third-party import has nothing to find.
    done = _run("-I", "-S", "-c", code)
    assert done.returncode == 0, done.stderr


def test_gateway_process_never_loads_gpu_code() -> None:
    names = _modules_under(ROOT / "governor", ROOT)
    assert len(names) > 20
    banned = "{'torch', 'triton', 'transformers', 'governor_probes', 'governor_kernels'}"
    code = f"import sys, {', '.join(names)}; print(sorted({banned} & set(sys.modules)))"
    done = _run("-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("folder", ["probes", "kernels"])
def test_package_folders_are_no_packages_themselves(folder: str) -> None:
    assert (ROOT / folder).is_dir()
    assert not (ROOT / folder / "__init__.py").exists()
