"""Scalars of a policy file: text to value and back, with units, and what is allowed in words."""

import re
from collections.abc import Mapping
from decimal import Decimal
from enum import Enum

from governor.adapters.policies_fields import Kind, Leaf
from governor.core.outcomes import Mode, Priority, ReasoningField, Strictness
from governor.core.policy import GovernorBlock

_TOKEN_UNITS = {"": 1, "k": 1_024, "K": 1_024, "M": 1_048_576}
_AREA_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_SECOND_UNITS: Mapping[str, Decimal | int] = {
    "": 1, "ms": Decimal("0.001"), "s": 1, "m": 60, "h": 3_600, "d": 86_400,
}  # fmt: skip
_SHARE_UNITS: Mapping[str, Decimal | int] = {"": 1, "%": Decimal("0.01")}
_UNITS: Mapping[Kind, Mapping[str, Decimal | int]] = {
    Kind.TOKENS: _TOKEN_UNITS,
    Kind.COUNT: {"": 1},
    Kind.AREA: _AREA_UNITS,
    Kind.SECONDS: _SECOND_UNITS,
    Kind.SHARE: _SHARE_UNITS,
    Kind.PERCENT: {"": 1, "%": 1},
    Kind.NUMBER: {"": 1},
}
_WHOLE = (Kind.TOKENS, Kind.COUNT, Kind.AREA)
_ENUMS: Mapping[str, type[Enum]] = {
    "mode": Mode,
    "priority": Priority,
    "budget.strictness": Strictness,
    "output.reasoning_field": ReasoningField,
    "output.governor_block": GovernorBlock,
}
_SWITCHES = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
# No leading zeros: YAML 1.1 reads 010 as eight, people as ten. No colons: it reads 1:30 as ninety.
_NUMBER = re.compile(
    r"([+-]?(?:0|[1-9][0-9_]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3})?) ?([A-Za-z%]*)"
)
_LONGEST_NUMBER = 40

INTEGER, FLOAT, BOOLEAN, NULL, STRING = ("int", "float", "bool", "null", "str")


class ValueRefused(ValueError):
    """A scalar is not what its key takes. The text says why."""


def read_value(leaf: Leaf, text: str, tag: str) -> object:
    """The value of `leaf` from a scalar's text and the last part of its YAML tag.

    Raises ValueRefused.
    """
    if tag == NULL or (leaf.null_word is not None and text == leaf.null_word):
        if leaf.null_means is None:
            raise ValueRefused("a value is needed")
        return None
    if leaf.kind is Kind.CHOICE:
        return _choice(leaf, text)
    if leaf.kind is Kind.SWITCH:
        if tag != BOOLEAN:
            raise ValueRefused("must be true or false")
        return _SWITCHES[text.lower()]
    if leaf.kind is Kind.TEXT:
        if tag != STRING:
            raise ValueRefused("must be text (put it in quotes)")
        if not leaf.minimum <= len(text) <= leaf.maximum:
            raise ValueRefused("has the wrong length")
        return text
    return _number(leaf, text)


def _choice(leaf: Leaf, text: str) -> Enum:
    if text not in leaf.choices:
        raise ValueRefused("is not one of the choices")
    return _ENUMS[leaf.path][text.upper()]


def _number(leaf: Leaf, text: str) -> int | float:
    units = _UNITS[leaf.kind]
    match = _NUMBER.fullmatch(text) if len(text) <= _LONGEST_NUMBER else None
    if match is None:
        raise ValueRefused("is not a number")
    if match[2] not in units:
        raise ValueRefused(f"has an unknown unit {match[2]!r}")
    number = Decimal(match[1].replace("_", "")) * units[match[2]]
    if not leaf.minimum <= number <= leaf.maximum:
        raise ValueRefused("is out of range")
    if leaf.kind in _WHOLE:
        if number != int(number):
            raise ValueRefused("must be a whole number")
        return int(number)
    return float(number)


def allowed(leaf: Leaf) -> str:
    """What `leaf` takes, in words."""
    return "; or ".join(_allowed_parts(leaf))


def _allowed_parts(leaf: Leaf) -> list[str]:
    low, high = _plain(leaf.minimum), _plain(leaf.maximum)
    forms = {
        Kind.TOKENS: f"{low} to {high} tokens (4096 or 4k)",
        Kind.COUNT: f"whole numbers from {low} to {high}",
        Kind.AREA: f"{low} to {high} token² (2000000 or 2M)",
        Kind.SECONDS: f"{low} to {high} seconds (30, 30s, 5m, 500ms)",
        Kind.SHARE: f"{low} to {high}, or 0% to {_plain(leaf.maximum * 100)}%",
        Kind.PERCENT: f"{low} to {high}, with or without %",
        Kind.NUMBER: f"numbers from {low} to {high}",
        Kind.SWITCH: "true, false",
        Kind.CHOICE: ", ".join(leaf.choices),
        Kind.TEXT: f"text of {low} to {high} characters",
        Kind.PATTERNS: "a list of model names or patterns, at least one",
        Kind.NAMES: "a list of names",
    }
    parts = [forms[leaf.kind]]
    if leaf.null_means is not None:
        word = f"null or {leaf.null_word}" if leaf.null_word else "null"
        parts.append(f"{word}: {leaf.null_means}")
    return parts


def shown(leaf: Leaf, value: object) -> str:
    """A value as a file would state it."""
    if value is None:
        return leaf.null_word or "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Enum):
        return value.name.lower()
    if isinstance(value, tuple):
        return "[" + ", ".join(f'"{item}"' for item in value) + "]"
    if isinstance(value, int | float):
        return _plain(value * 100) + "%" if leaf.kind is Kind.SHARE else _with_unit(leaf, value)
    return str(value)


def _with_unit(leaf: Leaf, value: float) -> str:
    unit = {Kind.SECONDS: "s", Kind.PERCENT: "%"}.get(leaf.kind, "")
    return _plain(value) + unit


def _plain(number: float) -> str:
    rounded = round(number, 6)
    return str(int(rounded)) if rounded == int(rounded) else str(rounded)
