"""Files and functions stay small; packages re-export nothing."""

import ast
from pathlib import Path
from statistics import median

import pytest

ROOT = Path(__file__).parent.parent.parent
CODE_FOLDERS = ("governor", "kernels", "probes", "benchmarks", "docs", "tests")
FILE_LINES = 500
FUNCTION_LINES = 60
CORE_MEDIAN_LINES = 150
# A package that is a command holds its entry point.
INIT_WITH_CODE = {"governor/cli/__init__.py"}
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "common", "misc"}

FILES = sorted(file for folder in CODE_FOLDERS for file in (ROOT / folder).rglob("*.py"))


def _name(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def _lines(file: Path) -> int:
    return len(file.read_text(encoding="utf-8").splitlines())


def test_no_file_is_over_the_limit() -> None:
    assert {_name(file): _lines(file) for file in FILES if _lines(file) > FILE_LINES} == {}


def test_core_files_are_small_in_the_median() -> None:
    sizes = [_lines(f) for f in (ROOT / "governor" / "core").glob("*.py") if _lines(f)]
    assert median(sizes) <= CORE_MEDIAN_LINES


def test_no_function_is_over_the_limit() -> None:
    too_long = {}
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > FUNCTION_LINES:
                    too_long[f"{_name(file)}:{node.lineno} {node.name}"] = length
    assert too_long == {}


@pytest.mark.parametrize("folder", ["governor", "kernels", "probes"])
def test_package_files_hold_no_code(folder: str) -> None:
    inits = (ROOT / folder).rglob("__init__.py")
    filled = {_name(file) for file in inits if file.read_text(encoding="utf-8").strip()}
    assert filled <= INIT_WITH_CODE


def test_every_file_says_what_it_is_for() -> None:
    silent = [
        _name(file)
        for file in FILES
        if file.name != "__init__.py"
        and not ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))
    ]
    assert silent == []


def test_no_file_has_a_vague_name() -> None:
    assert [_name(file) for file in FILES if file.stem in VAGUE_NAMES] == []


def test_test_files_have_distinct_names() -> None:
    names = [file.name for file in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))
