"""What is written in the repository: no machine paths, no index hosts, links that resolve."""

import re
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
TEXT_SUFFIXES = {".py", ".md", ".toml", ".yaml", ".yml", ".json", ".sh", ".txt", ".lock", ".cfg"}
TEXT_NAMES = {"Makefile", "run", "NOTICE", ".editorconfig", ".gitignore"}
IGNORED = {
    ".git", ".venv", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis",
    ".import_linter_cache", "__pycache__", "build", "dist",
}  # fmt: skip
# Pieces are joined so that this file does not match itself.
BANNED = {
    "a path of one machine": r"(?<![\w.-])/(?:" + "work|root|home|Users" + r")(?:/|\b(?![\w-]))",
    "a folder outside the repository": r"\.\./" + "shared",
    "a temporary folder of one machine": r"(?<![\w.-])/" + "tmp/",
    "a package index host": "(?:pypi" + r"\.org|pythonhosted\.org|download\.pytorch" + r"\.org)",
    "unfinished work": r"\b(?:TO" + "DO|FIX" + r"ME|XX" + r"X)\b",
}


def _texts() -> Iterator[Path]:
    folders = [ROOT]
    while folders:
        for entry in sorted(folders.pop().iterdir()):
            if entry.name in IGNORED or entry.name.endswith(".egg-info"):
                continue
            if entry.is_dir():
                folders.append(entry)
            elif entry.suffix in TEXT_SUFFIXES or entry.name in TEXT_NAMES:
                yield entry


@pytest.mark.parametrize("what", BANNED)
def test_nothing_names_what_only_one_machine_has(what: str) -> None:
    pattern = re.compile(BANNED[what])
    found = [
        f"{file.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for file in _texts()
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line)
    ]
    assert found == []


def _anchors(text: str) -> set[str]:
    """Heading anchors as GitHub makes them."""
    headings = re.findall(r"^#+ +(.+?) *$", _without_code(text), flags=re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in plain}


def _without_code(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def test_links_in_documents_resolve() -> None:
    broken = []
    documents = [file for file in _texts() if file.suffix == ".md"]
    for file in documents:
        text = _without_code(file.read_text(encoding="utf-8"))
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            there = (file.parent / path).resolve() if path else file
            inside = there.is_relative_to(ROOT) and there.exists()
            if not inside or (anchor and anchor not in _anchors(there.read_text(encoding="utf-8"))):
                broken.append(f"{file.relative_to(ROOT)}: {target}")
    assert documents
    assert broken == []


def test_locked_versions_are_exact() -> None:
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9_.\-]+==[0-9][\w.]*", pin) for pin in pins), pins
    assert "torch==2.13.0" in pins
    assert "transformers==5.24.0" in pins


def test_environment_is_the_locked_one() -> None:
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    pins = [line.split("==") for line in lines if line and not line.startswith("#")]
    differing = {
        name: version(name) for name, pin in pins if version(name).partition("+")[0] != pin
    }
    assert differing == {}, "run `make install`, or `make lock` after changing dependencies"
