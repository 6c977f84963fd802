"""Frozen dataclasses to plain JSON values and back, and their one canonical text.

For contracts and records. Not for the hot path, and not for what comes from clients.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from types import UnionType
from typing import Any, TypeAlias, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from governor.core.errors import GovernorError

Plain: TypeAlias = bool | int | float | str | list["Plain"] | dict[str, "Plain"] | None
T = TypeVar("T")


class PlainInvalid(GovernorError):
    """A value has no plain form, or plain values do not make the wanted type. Says where."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(f"{where or 'value'}: {problem}")
        self.where = where


def to_plain(value: object, where: str = "") -> Plain:
    """The plain form: dataclasses as objects of their init fields, enums by value, tuples as lists.

    Raises PlainInvalid for any other type and for numbers that JSON does not have.
    """
    if isinstance(value, Enum):
        return cast("int | str", value.value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise PlainInvalid(where, f"{value} has no JSON form")
        return value
    if isinstance(value, tuple):
        if all(type(item) is int for item in value):
            return list(value)
        return [to_plain(item, f"{where}[{index}]") for index, item in enumerate(value)]
    if is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: to_plain(getattr(value, field.name), _inside(where, field.name))
            for field in fields(value)
            if field.init
        }
    raise PlainInvalid(where, f"{type(value).__name__} has no plain form")


def from_plain(wanted: type[T], plain: object, where: str = "") -> T:
    """The value of dataclass `wanted` whose plain form is `plain`.

    A missing field takes its default, so that an older record can still be read; an unknown field
    is refused. Raises PlainInvalid with the place of the first fault.
    """
    return cast(T, _read(wanted, plain, where))


def canonical_json(value: object) -> str:
    """The one text of a value: sorted keys, no spaces, ASCII, floats by their shortest repr."""
    plain = to_plain(value)
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False)


def from_json(wanted: type[T], text: str) -> T:
    """The value whose JSON text is `text`. Raises PlainInvalid for anything else."""
    try:
        plain = json.loads(text)
    except ValueError as error:
        raise PlainInvalid("", f"not JSON: {error}") from error
    return from_plain(wanted, plain)


def _inside(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _read(wanted: Any, plain: object, where: str) -> object:
    origin = get_origin(wanted)
    if origin in (Union, UnionType):
        return _read_optional(wanted, plain, where)
    if origin is tuple:
        return _read_tuple(get_args(wanted), plain, where)
    if is_dataclass(wanted):
        return _read_dataclass(wanted, plain, where)
    if isinstance(wanted, type) and issubclass(wanted, Enum):
        try:
            return wanted(plain)
        except ValueError as error:
            raise PlainInvalid(where, str(error)) from error
    if wanted is float and type(plain) is int:
        return plain
    if wanted in (bool, int, float, str) and type(plain) is wanted:
        return plain
    name = getattr(wanted, "__name__", str(wanted))
    raise PlainInvalid(where, f"expected {name}, got {plain!r:.60}")


def _read_optional(wanted: Any, plain: object, where: str) -> object:
    arms = [arm for arm in get_args(wanted) if arm is not type(None)]
    if plain is None and len(arms) < len(get_args(wanted)):
        return None
    if len(arms) != 1:
        raise PlainInvalid(where, f"{wanted} cannot be told apart in plain form")
    return _read(arms[0], plain, where)


def _read_tuple(arms: tuple[Any, ...], plain: object, where: str) -> tuple[object, ...]:
    if not isinstance(plain, list):
        raise PlainInvalid(where, f"expected a list, got {plain!r:.60}")
    if arms[-1] is Ellipsis:
        arms = (arms[0],) * len(plain)
    if len(arms) != len(plain):
        raise PlainInvalid(where, f"expected {len(arms)} items, got {len(plain)}")
    return tuple(
        _read(arm, item, f"{where}[{index}]")
        for index, (arm, item) in enumerate(zip(arms, plain, strict=True))
    )


def _read_dataclass(wanted: Any, plain: object, where: str) -> object:
    if not isinstance(plain, Mapping):
        raise PlainInvalid(where, f"expected an object, got {plain!r:.60}")
    hints = get_type_hints(wanted)
    known = {field.name: field for field in fields(wanted) if field.init}
    unknown = sorted(set(plain) - set(known))
    if unknown:
        raise PlainInvalid(where, f"unknown fields: {', '.join(map(str, unknown))}")
    missing = [name for name, field in known.items() if name not in plain and _is_required(field)]
    if missing:
        raise PlainInvalid(where, f"missing fields: {', '.join(missing)}")
    values = {name: _read(hints[name], plain[name], _inside(where, name)) for name in plain}
    try:
        return wanted(**values)
    except ValueError as error:
        raise PlainInvalid(where, str(error)) from error


def _is_required(field: "Field[Any]") -> bool:
    return field.default is MISSING and field.default_factory is MISSING
