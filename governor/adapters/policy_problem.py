"""Problem: one fault of a policy file, with its place, and the error that carries all of them."""

from dataclasses import dataclass

from governor.core.errors import PolicyInvalid


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault, or one warning. Lines and columns count from 1; 0 where there is no place.

    `path` is the key's path (`tenants.acme.budget.max`), `found` what stands there, `allowed` the
    range or the choices, `nearest` the known word that was probably meant.
    """

    message: str
    path: str = ""
    line: int = 0
    column: int = 0
    found: str | None = None
    allowed: str | None = None
    nearest: str | None = None

    def __str__(self) -> str:
        place = f"line {self.line}, column {self.column}: " if self.line else ""
        text = f"{place}{self.path}: {self.message}" if self.path else f"{place}{self.message}"
        if self.found is not None:
            text += f", found {self.found}"
        if self.allowed is not None:
            text += f"; allowed: {self.allowed}"
        if self.nearest is not None:
            text += f"; did you mean {self.nearest!r}?"
        return text


class PolicyFileInvalid(PolicyInvalid):
    """A policy file cannot be used. `faults` holds every fault, in the order of the file."""

    def __init__(self, source: str, faults: tuple[Problem, ...]) -> None:
        count = "1 error" if len(faults) == 1 else f"{len(faults)} errors"
        lines = tuple(str(fault) for fault in faults)
        super().__init__("\n  ".join((f"{source}: {count}", *lines)), lines)
        self.source = source
        self.faults = faults
