"""Typed reading of a decoded JSON body: a value of the wrong type or range is the client's error.

A member that is absent or null reads as None. Numbers stay numbers: a bool is never an int, and no
text is converted. Knows no field names.
"""

from collections.abc import Mapping
from typing import Any

from governor.core.errors import RequestInvalid

# Larger than any context or deadline in use; keeps sums and conversions to float exact.
MOST_TOKENS = 2**31 - 1
MOST_SECONDS = 7 * 86_400

Path = tuple[str, ...]


def name_of(path: Path) -> str:
    """The dotted name of a member, as errors and notes state it."""
    return ".".join(path)


def at(body: Mapping[str, Any], path: Path) -> Any:
    """The member at `path`, None where it or a parent is absent or null.

    Raises RequestInvalid where a parent is not an object.
    """
    found: Any = body
    for depth, key in enumerate(path):
        if not isinstance(found, dict):
            raise _wrong(path[:depth], "an object")
        found = found.get(key)
        if found is None:
            return None
    return found


def integer(
    body: Mapping[str, Any], path: Path, lowest: int, highest: int = MOST_TOKENS
) -> int | None:
    """An integer in [lowest, highest]. Raises RequestInvalid."""
    value = at(body, path)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise _wrong(path, "an integer")
    if not lowest <= value <= highest:
        raise _wrong(path, f"between {lowest} and {highest}")
    return value


def number(body: Mapping[str, Any], path: Path, lowest: float, highest: float) -> float | None:
    """A finite number in [lowest, highest]. Raises RequestInvalid."""
    value = at(body, path)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong(path, "a number")
    if not lowest <= value <= highest:  # also refuses NaN
        raise _wrong(path, f"between {lowest} and {highest}")
    return float(value)


def flag(body: Mapping[str, Any], path: Path) -> bool | None:
    """True or false. Raises RequestInvalid."""
    value = at(body, path)
    if value is not None and not isinstance(value, bool):
        raise _wrong(path, "true or false")
    return value


def text(body: Mapping[str, Any], path: Path) -> str | None:
    """A non-empty string. Raises RequestInvalid."""
    value = at(body, path)
    if value is None:
        return None
    if not isinstance(value, str) or not value:
        raise _wrong(path, "a non-empty string")
    return value


def choice(body: Mapping[str, Any], path: Path, words: tuple[str, ...]) -> str | None:
    """One of `words`. Raises RequestInvalid."""
    value = at(body, path)
    if value is not None and value not in words:
        raise _wrong(path, "one of " + ", ".join(words))
    return None if value is None else str(value)


def table(body: Mapping[str, Any], path: Path) -> dict[str, Any] | None:
    """An object. Raises RequestInvalid."""
    value = at(body, path)
    if value is not None and not isinstance(value, dict):
        raise _wrong(path, "an object")
    return value


def _wrong(path: Path, wanted: str) -> RequestInvalid:
    name = name_of(path)
    return RequestInvalid(f"{name} must be {wanted}", name)
