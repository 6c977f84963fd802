"""Forced landings as data: what is drawn and cut, what counts as forced, empty, resumed."""

from dataclasses import replace

import pytest

from benchmarks.landing import headers_of, policy_text
from benchmarks.landing_cases import (
    LEAST_BUDGET_TOKENS,
    OPERATOR_LAG_TOKENS,
    Case,
    Draft,
    Natural,
    Outcome,
    Path,
    Place,
    case_of,
    drafts,
    first_candidate_line,
    thinking_tokens_of,
)
from benchmarks.landing_figures import figures, targets
from governor.adapters.policies_yaml import load_policy
from governor_probes.tiny_reasoner.task import Problem, TaskKind

PROBLEM = Problem(TaskKind.SUM, ("h", "s", "k"), (8, 2, 9), "19")
CHAIN = "h8=8\ns2=10\nk9=19\nso 19\nwait, check\nh8=8\ns2=10\nk9=19\nyes 19\n"


def a_case(path: Path = Path.CLIENT_BUDGET, at_tokens: int = 40) -> Case:
    draft = Draft(PROBLEM, path, Place.BEHIND, 16, 0.5)
    return Case(draft, Natural(CHAIN, 60, 25), at_tokens)


def landed(case: Case, **changes: object) -> Outcome:
    """A landing without fault."""
    reason = "operator" if case.draft.path is Path.OPERATOR else "budget_spent"
    outcome = Outcome(
        case=case,
        stream_interval=3,
        landed=reason,
        thinking="h8=8\ns2=10\nk9=19\nso 19\nwait, check\n",
        content="\n\n19",
        thinking_tokens=38,
        counted_tokens=None,
        granted_tokens=40,
        reasoning_after_content=False,
        error=None,
    )
    return replace(outcome, **changes)  # type: ignore[arg-type]


def test_drafts_use_every_path_grace_and_place_and_depend_on_the_seed_alone() -> None:
    drawn = drafts(180, seed=3)
    assert drawn == drafts(180, seed=3)
    assert drawn != drafts(180, seed=4)
    assert [sum(d.path is path for d in drawn) for path in Path] == [60, 60, 60]
    assert sum(d.place is Place.BEFORE for d in drawn) == 60
    assert sum(d.grace_tokens == 0 for d in drawn) == 90
    assert {d.problem.items for d in drawn} == set(range(4, 13))
    assert all(d.problem.items >= 7 for d in drawn if d.place is Place.BEHIND)
    combinations = {(d.path, d.place, d.grace_tokens) for d in drawn}
    assert len(combinations) == len(Path) * len(Place) * 2


@pytest.mark.parametrize("draw", [0.0, 0.3, 0.999])
@pytest.mark.parametrize("path", Path)
def test_a_cut_lies_before_the_natural_end_and_on_its_side_of_the_candidate(
    path: Path, draw: float
) -> None:
    natural = Natural(CHAIN, 160, 60)
    tail = OPERATOR_LAG_TOKENS if path is Path.OPERATOR else 1
    before = case_of(Draft(PROBLEM, path, Place.BEFORE, 16, draw), natural)
    assert before is not None
    assert 1 <= before.at_tokens <= 60 - tail
    assert before.at_tokens >= LEAST_BUDGET_TOKENS or path is Path.OPERATOR
    behind = case_of(Draft(PROBLEM, path, Place.BEHIND, 16, draw), natural)
    assert behind is not None
    # Wrap-up and the search for a boundary come before the budget: the candidate must too.
    least = 60 if path is Path.OPERATOR else 60 + 4 + 16
    assert least <= behind.at_tokens <= min(160 - tail, 150)


def test_thinking_that_ends_too_early_for_its_place_gives_no_case() -> None:
    draft = Draft(PROBLEM, Path.CLIENT_BUDGET, Place.BEHIND, 16, 0.5)
    assert case_of(draft, Natural("h8=8\nso 8\n", 27, 26)) is None
    early = Draft(PROBLEM, Path.OPERATOR, Place.BEFORE, 16, 0.5)
    assert case_of(early, Natural("h8=8\nso 8\n", 27, 20)) is None


@pytest.mark.parametrize(
    ("at_tokens", "interval", "deltas"), [(1, 1, 1), (40, 1, 40), (40, 3, 14), (40, 20, 2)]
)
def test_an_operator_counts_deltas_of_which_the_first_holds_one_token(
    at_tokens: int, interval: int, deltas: int
) -> None:
    case = a_case(Path.OPERATOR, at_tokens)
    assert case.deltas(interval) == deltas
    assert 1 + (deltas - 1) * interval <= at_tokens


def test_the_first_candidate_is_found_with_its_line_end() -> None:
    assert first_candidate_line(CHAIN) == "h8=8\ns2=10\nk9=19\nso 19\n"
    assert first_candidate_line("h8=8\ns2=10\n") is None
    assert first_candidate_line("h8=8\nso 8") is None


def test_thinking_is_counted_up_to_the_end_tag() -> None:
    assert thinking_tokens_of([5, 6, 7, 99, 8], 99) == 3
    assert thinking_tokens_of([5, 6], 99) is None


def test_only_thinking_that_beat_an_operator_is_not_forced() -> None:
    operated = a_case(Path.OPERATOR)
    assert landed(operated).forced
    assert not landed(operated, landed=None, thinking=CHAIN).forced
    # A landing that came and was not performed is a failure, not a race.
    assert landed(operated, landed=None, thinking=CHAIN[:20]).forced
    assert landed(a_case(), landed=None, thinking=CHAIN).forced


def test_a_landing_is_confirmed_by_its_own_reason_only() -> None:
    assert landed(a_case()).confirmed
    assert landed(a_case(Path.OPERATOR)).confirmed
    assert not landed(a_case(Path.OPERATOR), landed="budget_spent").confirmed
    assert not landed(a_case(), landed="loop").confirmed


@pytest.mark.parametrize(
    "changes",
    [
        {"content": "19\n<think>\nh8=8"},
        {"content": "\n\n19</think>"},
        {"content": "h8=8\ns2=10\n"},
        {"content": "19\nwait, check\n"},
        {"content": "so 19"},
        {"reasoning_after_content": True},
    ],
)
def test_thinking_that_goes_on_in_the_answer_is_seen(changes: dict[str, object]) -> None:
    assert not landed(a_case()).resumed_thinking
    assert landed(a_case(), **changes).resumed_thinking


@pytest.mark.parametrize(
    ("changes", "exceeded"),
    [
        ({"thinking_tokens": 40}, False),
        ({"thinking_tokens": 41}, True),
        ({"counted_tokens": 41}, True),
        ({"thinking_tokens": None}, True),
    ],
)
def test_a_cap_is_exceeded_by_either_count_or_where_there_is_none(
    changes: dict[str, object], exceeded: bool
) -> None:
    assert landed(a_case(at_tokens=40), **changes).cap_exceeded is exceeded


def test_an_operators_landing_has_the_grant_as_its_cap() -> None:
    assert not landed(a_case(Path.OPERATOR), thinking_tokens=400, granted_tokens=400).cap_exceeded
    assert landed(a_case(Path.OPERATOR), thinking_tokens=401, granted_tokens=400).cap_exceeded


def test_an_answer_is_supported_by_the_latest_candidate_or_total() -> None:
    assert landed(a_case()).supported
    assert not landed(a_case(), content="18").supported
    assert landed(a_case(), thinking="h8=8\ns2=10\nk9=1", content="10").supported
    assert landed(a_case(), thinking="h8=8\ns2=10\nk9=19", content="19").supported


def test_figures_leave_out_what_was_not_forced_and_split_the_rest() -> None:
    lost_race = landed(a_case(Path.OPERATOR), landed=None, thinking=CHAIN)
    outcomes = [
        landed(a_case()),
        landed(a_case(), content=" ", stream_interval=20),
        landed(a_case(Path.OPERATOR)),
        lost_race,
    ]
    found = figures(outcomes, lambda outcome: outcome is outcomes[0], seed=1)
    assert (found["forced_landings"], found["not_forced"]) == (3, 1)
    assert found["empty_answers"] == 1
    assert found["accuracy_landed"] == pytest.approx(2 / 3)
    assert found["accuracy_no_thinking"] == pytest.approx(1 / 3)
    assert found["accuracy_landed_interval_20"] == 0.0
    assert found["forced_landings_operator"] == 1
    assert found["forced_landings_grace_16"] == 3
    low, high = found["accuracy_landed_low"], found["accuracy_landed_high"]
    assert isinstance(low, float)
    assert isinstance(high, float)
    assert low < 2 / 3 < high


def test_targets_are_missed_by_one_fault() -> None:
    clean = [landed(a_case()) for _ in range(3)]
    fine = figures(clean, lambda _: False, seed=1)
    assert all(met for _, met in targets(fine))
    for fault in (
        {"content": ""},
        {"thinking_tokens": 41},
        {"reasoning_after_content": True},
        {"landed": None},
    ):
        found = figures([*clean, landed(a_case(), **fault)], lambda _: False, seed=1)
        assert not all(met for _, met in targets(found)), fault
    assert not all(met for _, met in targets(figures([], lambda _: False, seed=1)))


def test_each_grace_is_asked_for_with_the_key_of_a_tenant_that_has_it() -> None:
    policy = load_policy(policy_text()).policy
    for grace_tokens in (0, 16):
        draft = Draft(PROBLEM, Path.CLIENT_BUDGET, Place.BEHIND, grace_tokens, 0.5)
        key = headers_of(draft)["authorization"].removeprefix("Bearer ")
        tenant = policy.tenant(policy.caller(key, 0.0).tenant or "")
        assert tenant is not None
        assert tenant.landing.grace_tokens == grace_tokens
        assert not tenant.loops.enabled
