"""Typed reading of a JSON request body. A wrong type or range is a 400 that names the field."""

from typing import Any

from governor_probes.embedded.api_error import bad_request


class Body:
    """A request body; null counts as absent everywhere, unknown fields are ignored as vLLM does."""

    def __init__(self, fields: object) -> None:
        if not isinstance(fields, dict):
            raise bad_request("the request body must be a JSON object")
        self._fields: dict[str, Any] = fields

    @property
    def whole(self) -> dict[str, Any]:
        """The body as it came."""
        return self._fields

    def get(self, name: str) -> Any:
        """The raw value, None where absent."""
        return self._fields.get(name)

    def integer(
        self, name: str, default: int | None = None, low: int | None = None, high: int | None = None
    ) -> int | None:
        """An integer in [low, high]; booleans and floats are refused."""
        value = self._fields.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            raise bad_request(f"{name} must be an integer, got {value!r}", name)
        _check_range(name, value, low, high)
        return value

    def number(self, name: str, default: float, low: float, high: float) -> float:
        """A finite number in [low, high]."""
        value = self._fields.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
            raise bad_request(f"{name} must be a number, got {value!r}", name)
        _check_range(name, value, low, high)
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        """A boolean."""
        value = self._fields.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise bad_request(f"{name} must be a boolean, got {value!r}", name)
        return value

    def text(self, name: str) -> str | None:
        """A string."""
        value = self._fields.get(name)
        if value is not None and not isinstance(value, str):
            raise bad_request(f"{name} must be a string, got {value!r}", name)
        return value

    def table(self, name: str) -> dict[str, Any]:
        """An object; empty where absent."""
        value = self._fields.get(name)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise bad_request(f"{name} must be an object, got {value!r}", name)
        return value

    def strings(self, name: str) -> tuple[str, ...]:
        """A string or a list of non-empty strings."""
        value = self._fields.get(name)
        if value is None:
            return ()
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list) or not all(isinstance(s, str) and s for s in items):
            raise bad_request(f"{name} must be a non-empty string or a list of them", name)
        return tuple(items)

    def token_ids(self, name: str) -> list[int]:
        """A list of token ids; empty where absent."""
        value = self._fields.get(name)
        if value is None:
            return []
        if not isinstance(value, list) or not all(
            isinstance(i, int) and not isinstance(i, bool) for i in value
        ):
            raise bad_request(f"{name} must be a list of integers", name)
        return value


def _check_range(name: str, value: float, low: float | None, high: float | None) -> None:
    if (low is not None and value < low) or (high is not None and value > high):
        if high is None:
            allowed = f"at least {low}"
        elif low is None:
            allowed = f"at most {high}"
        else:
            allowed = f"between {low} and {high}"
        raise bad_request(f"{name} must be {allowed}, got {value}", name)
