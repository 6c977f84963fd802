"""PolicyStore: whole or not at all, told once, cheap while nothing changes."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from governor.adapters import policies_watch
from governor.adapters.policies_watch import PolicyStore, ReloadOutcome
from governor.adapters.policy_problem import PolicyFileInvalid

VERSION = "apiVersion: governor.dev/v1\n"
GOOD = VERSION + "tenants:\n  default:\n    budget: 4k\n"
OTHER = VERSION + "tenants:\n  default:\n    budget: 8k\n"
BAD = VERSION + "tenants:\n  default:\n    budget: -1\n    mode: on\n"
LONG_AGO_S = 1_000_000.0


class FakeClock:
    """Wall time as the test sets it; long after every file's time stamp."""

    def __init__(self) -> None:
        self.wall = LONG_AGO_S + 3_600.0

    def now_us(self) -> int:
        return 0

    def wall_s(self) -> float:
        return self.wall


class File:
    """A policy file whose time stamp moves by a second with every write."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stamp_s = LONG_AGO_S

    def write(self, text: str, *, touch: bool = True) -> None:
        self.path.write_text(text, encoding="utf-8")
        if touch:
            self._stamp_s += 1
        os.utime(self.path, (self._stamp_s, self._stamp_s))


@pytest.fixture
def file(tmp_path: Path) -> File:
    written = File(tmp_path / "policy.yaml")
    written.write(GOOD)
    return written


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(file: File, clock: FakeClock) -> PolicyStore:
    return PolicyStore(file.path, clock)


def budget(store: PolicyStore) -> int | None:
    policy = store.policy.tenant("default")
    assert policy is not None
    return policy.max_budget_tokens


def count_reads(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    reads: list[object] = []
    real = Path.read_bytes

    def counting(path: Path) -> bytes:
        reads.append(path)
        return real(path)

    monkeypatch.setattr(policies_watch.Path, "read_bytes", counting)
    return lambda: len(reads)


def test_a_changed_file_comes_into_force(store: PolicyStore, file: File) -> None:
    before = store.policy
    file.write(OTHER)
    result = store.check()
    assert (result.outcome, budget(store), store.reloaded) == (ReloadOutcome.RELOADED, 8_192, 1)
    assert result.policy_hash == store.policy.policy_hash != before.policy_hash


def test_an_invalid_file_leaves_the_old_policy_whole(store: PolicyStore, file: File) -> None:
    before = store.policy
    file.write(BAD)
    result = store.check()
    assert result.outcome is ReloadOutcome.REFUSED
    assert store.policy is before
    assert result.policy_hash == before.policy_hash
    assert len(result.problems) == 2
    assert store.problems == result.problems
    assert store.refused == 1


def test_a_refused_content_is_told_once_but_stays_visible(store: PolicyStore, file: File) -> None:
    file.write(BAD)
    store.check()
    file.write(BAD)
    again = store.check()
    assert (again.outcome, store.refused) == (ReloadOutcome.UNCHANGED, 1)
    assert again.problems == store.problems != ()


def test_a_mended_file_comes_into_force_and_clears_the_problems(
    store: PolicyStore, file: File
) -> None:
    file.write(BAD)
    store.check()
    file.write(GOOD)
    assert store.check().outcome is ReloadOutcome.RELOADED
    assert store.problems == ()
    assert budget(store) == 4_096


def test_an_unchanged_file_is_not_read(store: PolicyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = count_reads(monkeypatch)
    assert store.check().outcome is ReloadOutcome.UNCHANGED
    assert reads() == 0


def test_a_touched_file_is_read_and_not_reloaded(store: PolicyStore, file: File) -> None:
    before = store.policy
    file.write(GOOD)
    assert store.check().outcome is ReloadOutcome.UNCHANGED
    assert store.policy is before


def test_a_write_within_the_same_time_stamp_is_seen(file: File, clock: FakeClock) -> None:
    clock.wall = LONG_AGO_S + 1.5  # the file is half a second old when it is read
    store = PolicyStore(file.path, clock)
    file.write(GOOD.replace("4k", "9k"), touch=False)
    assert store.check().outcome is ReloadOutcome.RELOADED
    assert budget(store) == 9_216


def test_reload_reads_what_check_would_not(store: PolicyStore, file: File) -> None:
    file.write(GOOD.replace("4k", "9k"), touch=False)
    assert store.check().outcome is ReloadOutcome.UNCHANGED
    assert store.reload().outcome is ReloadOutcome.RELOADED
    assert budget(store) == 9_216


def test_a_file_that_goes_away_changes_nothing_until_it_is_back(
    store: PolicyStore, file: File
) -> None:
    before = store.policy
    file.path.unlink()
    assert store.check().outcome is ReloadOutcome.REFUSED
    assert store.check().outcome is ReloadOutcome.UNCHANGED
    assert store.policy is before
    assert (store.refused, len(store.problems)) == (1, 1)
    file.write(GOOD)
    assert store.check().outcome is ReloadOutcome.RELOADED
    assert store.problems == ()


def test_a_swapped_link_is_followed(file: File, clock: FakeClock, tmp_path: Path) -> None:
    link, other = tmp_path / "link.yaml", File(tmp_path / "other.yaml")
    other.write(OTHER)
    link.symlink_to(file.path)
    store = PolicyStore(link, clock)
    fresh = tmp_path / "fresh"
    fresh.symlink_to(other.path)
    fresh.replace(link)
    assert store.check().outcome is ReloadOutcome.RELOADED
    assert budget(store) == 8_192


def test_nothing_starts_without_a_policy(file: File, clock: FakeClock, tmp_path: Path) -> None:
    with pytest.raises(PolicyFileInvalid, match="cannot be read"):
        PolicyStore(tmp_path / "absent.yaml", clock)
    file.write(BAD)
    with pytest.raises(PolicyFileInvalid, match="2 errors"):
        PolicyStore(file.path, clock)
