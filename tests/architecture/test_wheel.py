"""The wheel holds the three packages with their data, and nothing that shadows another's name."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def wheel_files(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_top_level_names_are_ours_alone(wheel_files: set[str]) -> None:
    tops = {name.split("/")[0] for name in wheel_files}
    packages = {top for top in tops if not top.endswith(".dist-info")}
    assert packages == {"governor", "governor_kernels", "governor_probes"}


@pytest.mark.parametrize("model", ["tiny_reasoner", "tiny_reasoner_long"])
def test_the_models_ship_whole(wheel_files: set[str], model: str) -> None:
    folder = f"governor_probes/models/{model}/"
    wanted = ("config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja")
    assert {folder + name for name in (*wanted, "MODEL_CARD.md")} <= wheel_files


def test_policies_ship_as_data(wheel_files: set[str]) -> None:
    shipped = {n.removeprefix("governor/_data/") for n in wheel_files if "/_data/policies/" in n}
    here = {p.relative_to(ROOT).as_posix() for p in (ROOT / "policies").rglob("*") if p.is_file()}
    assert shipped == here
    assert any(name.endswith(".yaml") for name in shipped)


def test_every_module_ships_typed_and_licensed(wheel_files: set[str]) -> None:
    for folder in ("governor", "kernels/governor_kernels", "probes/governor_probes"):
        above = (ROOT / folder).parent
        sources = {p.relative_to(above).as_posix() for p in (ROOT / folder).rglob("*.py")}
        assert sources <= wheel_files
        assert f"{folder.rsplit('/')[-1]}/py.typed" in wheel_files
    assert any(name.endswith("/LICENSE") for name in wheel_files)
    assert any(name.endswith("/NOTICE") for name in wheel_files)
    assert not any(name.startswith("tests/") for name in wheel_files)
