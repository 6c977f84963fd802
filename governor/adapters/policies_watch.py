"""PolicyStore: the policy in force, and its reload from the file, whole or not at all. No thread.

Fails static: a file that is away or invalid changes nothing; the policy in force stays, `problems`
says what is wrong, `refused` counts (metric `policy_reloads`, result `refused`).
"""

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from governor.adapters.policies_yaml import load_policy
from governor.adapters.policy_problem import PolicyFileInvalid, Problem
from governor.core.policy import PolicySet
from governor.ports import Clock

# A file that was written within this time before it was read may be written again with the same
# time stamp (some file systems count in seconds), so its stamp is not trusted (as in git's index).
_STAMP_SETTLES_S = 2.0


class ReloadOutcome(StrEnum):
    """What a look at the file led to."""

    UNCHANGED = "unchanged"
    RELOADED = "reloaded"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class ReloadResult:
    """One reload. `policy_hash` is that of the policy in force afterwards."""

    outcome: ReloadOutcome
    policy_hash: str
    problems: tuple[Problem, ...] = ()
    warnings: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class _Stamp:
    modified_ns: int
    size: int
    inode: int


class PolicyStore:
    """Holds the policy in force. Readers take `policy` once per request and keep that value.

    `check` and `reload` swap it by one assignment, so they may run in another thread than the
    readers, one at a time: a file of a thousand tenants takes some tenths of a second to load.

    Raises PolicyFileInvalid where the first load fails: a gateway does not start without a policy.
    """

    __slots__ = (
        "_clock",
        "_digest",
        "_path",
        "_policy",
        "_problems",
        "_stamp",
        "_warnings",
        "refused",
        "reloaded",
    )

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._problems: tuple[Problem, ...] = ()
        self.reloaded = 0
        self.refused = 0
        data, self._stamp = self._read()
        loaded = load_policy(data, str(path))
        self._digest = hashlib.sha256(data).digest()
        self._policy = loaded.policy
        self._warnings = loaded.warnings

    @property
    def policy(self) -> PolicySet:
        """The policy in force."""
        return self._policy

    @property
    def path(self) -> Path:
        """The file that is watched."""
        return self._path

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Why the file is not in force as it stands; empty where it is."""
        return self._problems

    @property
    def warnings(self) -> tuple[Problem, ...]:
        """What the author of the policy in force should know."""
        return self._warnings

    def check(self) -> ReloadResult:
        """Reload if the file's content has changed. Cheap (one `stat`) where it has not.

        Call it every few seconds. A refused content is reported once and not read again until the
        file changes.
        """
        try:
            stamp = self._stat()
        except OSError as error:
            return self._away(error)
        if stamp == self._stamp:
            return self._unchanged()
        return self._take(always=False)

    def reload(self) -> ReloadResult:
        """Read the file, changed or not (SIGHUP, an operator's request)."""
        return self._take(always=True)

    def _take(self, *, always: bool) -> ReloadResult:
        try:
            data, self._stamp = self._read()
        except PolicyFileInvalid as invalid:
            known = self._problems == invalid.faults and not always
            return self._unchanged() if known else self._refuse(invalid.faults)
        digest = hashlib.sha256(data).digest()
        if digest == self._digest and not always:
            return self._unchanged()
        self._digest = digest
        try:
            loaded = load_policy(data, str(self._path))
        except PolicyFileInvalid as invalid:
            return self._refuse(invalid.faults)
        self._policy = loaded.policy
        self._warnings = loaded.warnings
        self._problems = ()
        self.reloaded += 1
        return ReloadResult(
            ReloadOutcome.RELOADED, loaded.policy.policy_hash, warnings=loaded.warnings
        )

    def _refuse(self, problems: tuple[Problem, ...]) -> ReloadResult:
        self._problems = problems
        self.refused += 1
        return ReloadResult(ReloadOutcome.REFUSED, self._policy.policy_hash, problems)

    def _away(self, error: OSError) -> ReloadResult:
        """The file is gone: refused when it first goes, then unchanged until it is back."""
        fault = _unreadable(error)
        if self._problems == (fault,):
            return self._unchanged()
        self._stamp = None
        self._digest = b""
        return self._refuse((fault,))

    def _unchanged(self) -> ReloadResult:
        return ReloadResult(ReloadOutcome.UNCHANGED, self._policy.policy_hash, self._problems)

    def _read(self) -> tuple[bytes, _Stamp | None]:
        """Content and stamp; no stamp where the file is too fresh for its stamp to be trusted."""
        try:
            stamp = self._stat()
            data = self._path.read_bytes()
        except OSError as error:
            raise PolicyFileInvalid(str(self._path), (_unreadable(error),)) from error
        settled = self._clock.wall_s() - stamp.modified_ns / 1e9 > _STAMP_SETTLES_S
        return data, stamp if settled else None

    def _stat(self) -> _Stamp:
        # Follows links: a mounted ConfigMap changes by swapping a symbolic link.
        status = self._path.stat()
        return _Stamp(status.st_mtime_ns, status.st_size, status.st_ino)


def _unreadable(error: OSError) -> Problem:
    return Problem(f"cannot be read: {error.strerror or error}")
