"""Policy files: short and full forms, every fault at once with its place, versions, hashes."""

import pytest

from governor.adapters.policies_fields import LEAVES, Scope
from governor.adapters.policies_tenant import values_of
from governor.adapters.policies_yaml import load_policy
from governor.adapters.policy_problem import PolicyFileInvalid, Problem
from governor.core.errors import PolicyInvalid
from governor.core.keys import KeyEntry
from governor.core.outcomes import Mode, Priority, ReasoningField, Strictness
from governor.core.policy import (
    GovernorBlock,
    LandingPolicy,
    LoopPolicy,
    PolicySet,
    QueuePolicy,
    Resolved,
    TenantPolicy,
)

VERSION = "apiVersion: governor.dev/v1\n"
HASH = "sha256:" + "0" * 63
BY_PATH = {leaf.path: leaf for leaf in LEAVES}


def load(text: str) -> PolicySet:
    return load_policy(VERSION + text).policy


def tenant(text: str) -> TenantPolicy:
    """The policy of one tenant whose body is `text`, unindented."""
    body = "".join(f"    {line}\n" for line in text.splitlines())
    found = load(f"tenants:\n  t:\n{body}").tenant("t")
    assert found is not None
    return found


def faults(text: str | bytes) -> tuple[Problem, ...]:
    with pytest.raises(PolicyFileInvalid) as caught:
        load_policy(text)
    return caught.value.faults


def fault(text: str | bytes) -> Problem:
    (only,) = faults(text)
    return only


def test_three_lines_are_a_policy() -> None:
    loaded = load_policy("tenants:\n  default:\n    budget: 4096\n")
    assert loaded.policy.tenant("default") == TenantPolicy(
        default_budget_tokens=4096, max_budget_tokens=4096
    )
    assert loaded.policy.default_tenant == "default"
    (warning,) = loaded.warnings
    assert warning.path == "apiVersion"


def test_a_tenant_without_a_word_has_the_defaults() -> None:
    assert load("tenants:\n  default:\n").tenant("default") == TenantPolicy()


FULL = f"""
defaults:
  weight: 2
  budget: {{max: 32k}}
tenants:
  acme:
    keys:
      - {HASH}1
      - hash: {HASH}2
        not_after: 2027-01-31
        note: the old one
    mode: shadow
    mode_percent: 25%
    allow_models: ["q*", exact]
    priority: high
    effort: {{low: 1k, max: unlimited}}
    budget: {{default: 8_192, strictness: proven}}
    answer_reserve: 256
    deadline: 5m
    quota: {{concurrent: 3, kv_area_per_minute: 2G}}
    long_task_share: 25%
    loops: {{enabled: off, min_repeats: 4, min_run: 64}}
    landing: {{enabled: true, grace: 0, grace_fraction: 5%, unlanded_share: 0.5, wrap_up_text: "x"}}
    queue: {{ttl: 1m, max_queued: 5, commit_after: 500ms}}
    output: {{reasoning_field: both, governor_block: always}}
    allow_extras: [vllm_xargs]
"""


def test_every_key_reaches_the_policy() -> None:
    policies = load(FULL)
    assert policies.tenant("acme") == TenantPolicy(
        tenant="acme",
        mode=Mode.SHADOW,
        mode_percent=25.0,
        models=("q*", "exact"),
        priority=Priority.HIGH,
        weight=2.0,
        effort_tokens=(
            ("none", 0),
            ("minimal", 512),
            ("low", 1_024),
            ("medium", 8_192),
            ("high", 16_384),
            ("xhigh", 32_768),
            ("max", None),
        ),
        default_budget_tokens=8_192,
        max_budget_tokens=32_768,
        answer_reserve_tokens=256,
        strictness=Strictness.PROVEN,
        deadline_s=300.0,
        max_concurrent=3,
        kv_area_per_minute=2 * 10**9,
        long_task_share=0.25,
        loops=LoopPolicy(enabled=False, min_repeats=4, min_run_tokens=64),
        landing=LandingPolicy(
            enabled=True,
            grace_tokens=0,
            grace_fraction=0.05,
            unlanded_share=0.5,
            wrap_up_text="x",
        ),
        queue=QueuePolicy(ttl_s=60.0, max_queued=5, commit_after_s=0.5),
        reasoning_field=ReasoningField.BOTH,
        governor_block=GovernorBlock.ALWAYS,
        allow_extras=("vllm_xargs",),
    )
    last_second_of_january = 1_801_439_999
    assert policies.keys == (
        KeyEntry(HASH + "1", "acme"),
        KeyEntry(HASH + "2", "acme", last_second_of_january),
    )
    assert policies.default_tenant is None


def test_the_table_knows_every_field_of_a_policy() -> None:
    named = {leaf.attribute for leaf in LEAVES} | {"tenant"}
    own = set(TenantPolicy.__dataclass_fields__)
    inner = {"loops": LoopPolicy, "landing": LandingPolicy, "queue": QueuePolicy}
    wanted = {f"{section}.{name}" for section, kind in inner.items()
              for name in kind.__dataclass_fields__}  # fmt: skip
    assert named == (own - set(inner)) | wanted


FIVE_ERRORS = """\
apiVersion: governor.dev/v1
tenants:
  acme:
    budgett: 4k
    budget:
      max: -3
    mode: enforced
    deadline: 90x
    quota:
      concurrent: 4
      concurrent: 5
"""


def test_five_errors_are_reported_together_with_their_places() -> None:
    found = faults(FIVE_ERRORS)
    assert [(f.path, f.line, f.column) for f in found] == [
        ("tenants.acme.budgett", 4, 5),
        ("tenants.acme.budget.max", 6, 12),
        ("tenants.acme.mode", 7, 11),
        ("tenants.acme.deadline", 8, 15),
        ("tenants.acme.quota.concurrent", 11, 7),
    ]
    unknown, value, word, unit, twice = found
    assert unknown.nearest == "budget"
    assert (value.found, value.message) == ("'-3'", "is out of range")
    assert value.allowed is not None
    assert "0 to 1048576" in value.allowed
    assert (word.nearest, word.allowed) == ("enforce", "off, observe, shadow, enforce")
    assert "'x'" in unit.message
    assert "line 10" in twice.message


def test_the_error_is_the_cores_and_tells_all_in_its_text() -> None:
    with pytest.raises(PolicyInvalid) as caught:
        load_policy(FIVE_ERRORS, "acme.yaml")
    assert len(caught.value.problems) == 5
    assert str(caught.value).startswith("acme.yaml: 5 errors\n")
    assert "line 6, column 12: tenants.acme.budget.max: is out of range" in str(caught.value)


def test_null_where_a_value_is_needed_is_refused() -> None:
    problem = fault(VERSION + "tenants:\n  t:\n    mode: null\n")
    assert (problem.path, problem.line) == ("tenants.t.mode", 4)


def test_defaults_lie_under_each_tenant_value_by_value() -> None:
    policies = load(
        "defaults:\n  budget: {default: 1k, max: 8k}\n  effort: {low: 1}\n"
        "tenants:\n  a:\n    budget: {max: 4k}\n    effort: {high: 2}\n  b: {}\n"
    )
    a, b = policies.tenant("a"), policies.tenant("b")
    assert a is not None
    assert b is not None
    assert (a.default_budget_tokens, a.max_budget_tokens) == (1_024, 4_096)
    assert (a.tokens_for_effort("low"), a.tokens_for_effort("high")) == (1, 2)
    assert (b.default_budget_tokens, b.max_budget_tokens) == (1_024, 8_192)


def test_null_lifts_a_limit_of_the_defaults() -> None:
    policies = load("defaults:\n  budget: 1k\ntenants:\n  a:\n    budget: unlimited\n")
    own = policies.tenant("a")
    assert own is not None
    assert (own.default_budget_tokens, own.max_budget_tokens) == (None, None)


def test_a_switch_stands_for_its_section() -> None:
    assert not tenant("loops: false").loops.enabled
    assert not tenant("landing: off").landing.enabled


def test_overrides_of_models_and_priorities_merge_onto_the_tenant() -> None:
    policies = load(
        "tenants:\n  a:\n    budget: {default: 1k, max: 8k}\n    deadline: 10s\n"
        "    models:\n      'q*': {budget: {default: 2k}}\n"
        "    priorities:\n      batch: {deadline: unlimited}\n"
    )
    found = policies.resolve("a", "q", Priority.BATCH)
    assert isinstance(found, Resolved)
    policy = found.policy
    assert (policy.default_budget_tokens, policy.max_budget_tokens) == (2_048, 8_192)
    assert policy.deadline_s is None
    plain = policies.resolve("a", "x")
    assert isinstance(plain, Resolved)
    assert (plain.policy.default_budget_tokens, plain.policy.deadline_s) == (1_024, 10.0)


def test_a_default_above_the_maximum_is_a_fault_where_they_meet() -> None:
    text = VERSION + "defaults:\n  budget: {max: 1k}\ntenants:\n  a:\n    budget: {default: 2k}\n"
    problem = fault(text)
    assert (problem.path, problem.line) == ("tenants.a.budget.default", 6)
    assert "line 3" in problem.message


def test_a_contradiction_in_an_override_is_found() -> None:
    text = "tenants:\n  a:\n    budget: {max: 1k}\n    models:\n      q: {budget: {default: 2k}}\n"
    assert fault(VERSION + text).path == "tenants.a.models.q.budget.default"


def test_what_belongs_to_a_tenant_is_refused_in_an_override() -> None:
    problem = fault(VERSION + "tenants:\n  a:\n    models:\n      q: {quota: {concurrent: 1}}\n")
    assert "belongs to a tenant" in problem.message
    assert "belongs to one tenant" in fault(
        VERSION + "defaults:\n  keys: []\ntenants:\n  a: {}\n"
    ).message  # fmt: skip


def test_a_list_of_models_is_told_its_key() -> None:
    assert fault(VERSION + "tenants:\n  a:\n    models: [q]\n").nearest == "allow_models"


def test_a_plain_key_is_refused_and_never_shown() -> None:
    secret = "gk-" + "s" * 43
    for text in (
        f"keys: [{secret}]",
        f"keys: {secret}",
        f"keys: [{{hash: {secret}}}]",
        secret + ": 1",
    ):
        found = faults(VERSION + f"tenants:\n  a:\n    {text}\n")
        assert found
        assert all(secret not in str(problem) for problem in found)


def test_a_key_of_two_tenants_is_refused() -> None:
    text = f"tenants:\n  a:\n    keys: [{HASH}1]\n  b:\n    keys: [{HASH}1]\n"
    assert "tenants.a.keys[0]" in fault(VERSION + text).message


@pytest.mark.parametrize("moment", ["soon", "2027-01-31T12:00:00", "2027-02-30", "9999-12-31"])
def test_an_end_of_a_key_without_date_or_zone_is_refused(moment: str) -> None:
    text = f"tenants:\n  a:\n    keys:\n      - hash: {HASH}1\n        not_after: {moment}\n"
    assert fault(VERSION + text).path == "tenants.a.keys[0].not_after"


def test_a_time_with_a_zone_ends_a_key() -> None:
    text = f"    keys:\n      - hash: {HASH}1\n        not_after: 1970-01-01T01:00:10+01:00\n"
    assert load(f"tenants:\n  a:\n{text}").keys[0].not_after_s == 10


def test_keys_close_the_default_tenant_unless_it_is_named() -> None:
    tenants = f"tenants:\n  default: {{}}\n  a:\n    keys: [{HASH}1]\n"
    loaded = load_policy(VERSION + tenants)
    assert loaded.policy.default_tenant is None
    (warning,) = loaded.warnings
    assert (warning.path, warning.line) == ("tenants.default", 3)
    assert load("anonymous_tenant: default\n" + tenants).default_tenant == "default"
    assert load("anonymous_tenant: null\ntenants:\n  default: {}\n").default_tenant is None


def test_an_unknown_anonymous_tenant_is_refused() -> None:
    assert fault(VERSION + "anonymous_tenant: b\ntenants:\n  a: {}\n").path == "anonymous_tenant"


@pytest.mark.parametrize("name", ["_governor", "a b", "ü", "", "x" * 65, "a/b"])
def test_bad_tenant_names_are_refused(name: str) -> None:
    assert "is not a name for a tenant" in fault(f'{VERSION}tenants:\n  "{name}": {{}}\n').message


@pytest.mark.parametrize(
    "text",
    ["", "# nothing\n", "---\n", "just text", "[1, 2]", "tenants: {}", "tenants: 5", "a: [", "\t"],
)
def test_what_is_no_policy_is_refused_with_one_fault(text: str) -> None:
    assert fault(text).message


def test_yaml_that_breaks_off_has_its_line() -> None:
    assert fault("tenants:\n  a: {budget: 4k\n").line >= 2


def test_merge_keys_are_refused() -> None:
    found = faults(VERSION + "tenants:\n  a: &a {}\n  b:\n    <<: *a\n")
    assert "merge keys" in found[0].message


def test_an_anchor_may_be_used_twice() -> None:
    policies = load("tenants:\n  a: &a {budget: 4k}\n  b: *a\n")
    assert values_of(policies.tenants[0][1]) == values_of(policies.tenants[1][1])


def test_an_unknown_version_is_refused_alone_with_a_hint() -> None:
    problem = fault("apiVersion: governor.dev/v2\ntenants:\n  a: {future: 1}\n")
    assert (problem.path, problem.line, problem.column) == ("apiVersion", 1, 13)
    assert "a newer one needs a newer Governor" in problem.message
    assert problem.allowed == "governor.dev/v1, governor.dev/v1alpha1"


@pytest.mark.parametrize("version", ["1", "[v1]", "{}", "null"])
def test_a_version_that_is_no_name_is_refused(version: str) -> None:
    assert fault(f"apiVersion: {version}\ntenants: {{a: {{}}}}\n").path == "apiVersion"


def test_v1alpha1_is_migrated_with_warnings_in_their_lines() -> None:
    loaded = load_policy(
        "apiVersion: governor.dev/v1alpha1\n"
        "defaults:\n  max_thinking_budget: 8k\n"
        "tenants:\n  default:\n    thinking_budget: 4k\n    landing: {grace_fraction: 5%}\n"
        "    grace_tokens: 8\n"
    )
    own = loaded.policy.tenant("default")
    assert own is not None
    assert (own.default_budget_tokens, own.max_budget_tokens) == (4_096, 8_192)
    assert (own.landing.grace_tokens, own.landing.grace_fraction) == (8, 0.05)
    places = [(warning.path, warning.line) for warning in loaded.warnings[1:]]
    assert places == [
        ("defaults.max_thinking_budget", 3),
        ("tenants.default.thinking_budget", 6),
        ("tenants.default.grace_tokens", 8),
    ]


def test_a_fault_in_a_migrated_value_has_its_line() -> None:
    problem = fault(
        "apiVersion: governor.dev/v1alpha1\ntenants:\n  a:\n    thinking_budget: lots\n"
    )
    assert (problem.path, problem.line) == ("tenants.a.budget.default", 4)


def test_an_old_key_in_a_present_file_is_told_its_name() -> None:
    assert fault(VERSION + "tenants:\n  a:\n    thinking_budget: 4k\n").nearest == "budget.default"


def test_a_migrated_file_says_the_same_as_one_of_the_present_version() -> None:
    old = load_policy(
        "apiVersion: governor.dev/v1alpha1\ntenants:\n  default: {thinking_budget: 4k}\n"
    )
    assert old.policy == load("tenants:\n  default: {budget: {default: 4k}}\n")


def test_the_hash_is_of_what_a_policy_says_not_of_how() -> None:
    one = load("# a\ntenants:\n  a: {budget: 4k}\n  b: {deadline: 60}\n")
    same = load(
        "defaults: {}\ntenants:\n  b:\n    deadline: 1m\n"
        "  a:\n    budget: {default: 4096, max: 4k}\n"
    )
    other = load("tenants:\n  a: {budget: 5k}\n  b: {deadline: 60}\n")
    assert one.policy_hash == same.policy_hash
    assert one.policy_hash != other.policy_hash
    assert one.policy_hash.startswith("sha256:")


@pytest.mark.parametrize(
    "change",
    [
        "anonymous_tenant: null\ntenants: {default: {}}",
        f"anonymous_tenant: default\ntenants: {{default: {{keys: ['{HASH}1']}}}}",
        "tenants: {default: {models: {q: {budget: 1}}}}",
        "tenants: {default: {priorities: {batch: {budget: 1}}}}",
    ],
    ids=["anonymous", "keys", "models", "priorities"],
)
def test_everything_that_acts_is_in_the_hash(change: str) -> None:
    assert load(change).policy_hash != load("tenants: {default: {}}").policy_hash


def test_scopes_hold_what_their_name_says() -> None:
    assert all(Scope.TENANT in leaf.scopes for leaf in LEAVES)
    per_tenant = {leaf.path for leaf in LEAVES if Scope.MODEL not in leaf.scopes}
    assert per_tenant == {
        "allow_models", "weight", "quota.concurrent", "quota.kv_area_per_minute",
    }  # fmt: skip
