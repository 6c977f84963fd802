"""Policies in the core: which override applies, priorities, modes, and whose a key is."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.core.keys import (
    MOST_KEY_CHARACTERS,
    Caller,
    KeyEntry,
    KeyRing,
    KeyVerdict,
    hash_of_key,
    is_key,
    is_key_hash,
)
from governor.core.outcomes import Mode, Priority
from governor.core.policy import (
    NotResolved,
    PolicySet,
    Resolved,
    TenantPolicy,
    Unresolved,
    Variant,
    effective_mode,
    specificity,
)

OWN = TenantPolicy(tenant="acme", max_budget_tokens=1)


def policy_set(*variants: Variant, own: TenantPolicy = OWN) -> PolicySet:
    return PolicySet("hash", (("acme", own),), variants=tuple(("acme", v) for v in variants))


def variant(pattern: str | None, budget: int, band: Priority | None = None) -> Variant:
    return Variant(pattern, band, replace(OWN, max_budget_tokens=budget))


def budget_for(policies: PolicySet, model: str, priority: Priority | None = None) -> int | None:
    found = policies.resolve("acme", model, priority)
    assert isinstance(found, Resolved)
    return found.policy.max_budget_tokens


def test_an_unknown_tenant_has_no_policy() -> None:
    assert policy_set().resolve("other", "m") == Unresolved(NotResolved.UNKNOWN_TENANT)


def test_a_model_outside_the_list_has_no_policy() -> None:
    policies = policy_set(own=replace(OWN, models=("qwen-*",)))
    assert policies.resolve("acme", "llama") == Unresolved(NotResolved.MODEL_NOT_ALLOWED)
    assert isinstance(policies.resolve("acme", "qwen-8b"), Resolved)


def test_patterns_are_case_sensitive() -> None:
    policies = policy_set(own=replace(OWN, models=("Qwen*",)))
    assert policies.resolve("acme", "qwen") == Unresolved(NotResolved.MODEL_NOT_ALLOWED)


@pytest.mark.parametrize("order", [1, -1], ids=["general first", "general last"])
def test_the_most_specific_pattern_applies_alone(order: int) -> None:
    variants = [variant("*", 10), variant("qwen*", 20), variant("qwen-8b*", 30)]
    variants += [variant("qwen-8b-fp8", 40)]
    policies = policy_set(*variants[::order])
    models = ["llama", "qwen-32b", "qwen-8b", "qwen-8b-fp8"]
    assert [budget_for(policies, model) for model in models] == [10, 20, 30, 40]


def test_equal_patterns_keep_the_order_of_the_file() -> None:
    assert budget_for(policy_set(variant("ab*", 1), variant("*ab", 2)), "ab-ab") == 1
    assert budget_for(policy_set(variant("*ab", 2), variant("ab*", 1)), "ab-ab") == 2


def test_an_exact_name_beats_every_pattern() -> None:
    assert specificity("a") > specificity("abcdefgh*")
    assert specificity("ab*") > specificity("a*")
    assert specificity("a?c") > specificity("a?*")


def test_without_a_matching_pattern_the_tenants_own_policy_applies() -> None:
    assert budget_for(policy_set(variant("qwen*", 20)), "llama") == 1


def test_an_override_of_the_band_applies_on_top_of_the_models() -> None:
    policies = policy_set(
        variant("q*", 20),
        variant(None, 30, Priority.BATCH),
        variant("q*", 40, Priority.BATCH),
    )
    assert budget_for(policies, "q", Priority.BATCH) == 40
    assert budget_for(policies, "x", Priority.BATCH) == 30
    assert budget_for(policies, "q") == 20
    assert budget_for(policies, "x") == 1


def test_what_applied_is_named() -> None:
    found = policy_set(variant("q*", 20), variant("q*", 40, Priority.LOW)).resolve(
        "acme", "q", Priority.LOW
    )
    assert isinstance(found, Resolved)
    assert (found.pattern, found.band, found.priority) == ("q*", Priority.LOW, Priority.LOW)


@given(own=st.sampled_from(Priority), asked=st.none() | st.sampled_from(Priority))
def test_a_client_never_gets_an_earlier_band_than_its_policy(
    own: Priority, asked: Priority | None
) -> None:
    found = policy_set(own=replace(OWN, priority=own)).resolve("acme", "m", asked)
    assert isinstance(found, Resolved)
    assert found.priority == (own if asked is None else max(own, asked))


def test_a_models_band_is_the_ceiling_for_its_requests() -> None:
    late = Variant("q*", None, replace(OWN, priority=Priority.LOW))
    found = policy_set(late).resolve("acme", "q", Priority.CRITICAL)
    assert isinstance(found, Resolved)
    assert found.priority is Priority.LOW


@given(
    mode=st.sampled_from(Mode),
    percent=st.floats(0, 100),
    draw=st.floats(0, 1, exclude_max=True),
)
def test_the_mode_holds_for_its_percentage_and_off_always(
    mode: Mode, percent: float, draw: float
) -> None:
    policy = replace(OWN, mode=mode, mode_percent=percent)
    inside = mode is Mode.OFF or draw * 100 < percent
    assert effective_mode(policy, draw) is (mode if inside else Mode.OBSERVE)


def ring(*entries: KeyEntry, anonymous: str | None = None) -> KeyRing:
    return KeyRing(entries, anonymous)


def entry(key: str, tenant: str, not_after_s: int | None = None) -> KeyEntry:
    return KeyEntry(hash_of_key(key), tenant, not_after_s)


def test_a_key_names_its_tenant() -> None:
    keys = ring(entry("one", "a"), entry("two", "b"))
    assert keys.caller("two", 0.0) == Caller(KeyVerdict.ACCEPTED, "b")


@given(st.text(max_size=60))
def test_no_other_text_is_a_key(text: str) -> None:
    caller = ring(entry("one", "a")).caller(text, 0.0)
    wanted = KeyVerdict.ACCEPTED if text == "one" else KeyVerdict.UNKNOWN
    assert caller.verdict is (KeyVerdict.MISSING if text == "" else wanted)


def test_bytes_that_are_no_utf8_are_an_unknown_key() -> None:
    assert ring(entry("one", "a")).caller("\udcff", 0.0).verdict is KeyVerdict.UNKNOWN


def test_a_key_ends_after_its_last_second() -> None:
    keys = ring(entry("old", "a", 100), entry("fresh", "a"))
    assert keys.caller("old", 100.0).verdict is KeyVerdict.ACCEPTED
    assert keys.caller("old", 100.5) == Caller(KeyVerdict.EXPIRED, None)
    assert keys.caller("fresh", 1e12).tenant == "a"


def test_two_keys_of_a_tenant_overlap_during_rotation() -> None:
    keys = ring(entry("old", "a", 100), entry("fresh", "a"))
    assert [keys.caller(key, 50.0).tenant for key in ("old", "fresh")] == ["a", "a"]


def test_without_a_key_the_anonymous_tenant_serves() -> None:
    keys = ring(entry("one", "a"), anonymous="open")
    assert keys.caller(None, 0.0) == Caller(KeyVerdict.ANONYMOUS, "open")
    assert keys.caller("wrong", 0.0).verdict is KeyVerdict.UNKNOWN


def test_without_any_key_in_the_policy_every_key_is_taken() -> None:
    keys = ring(anonymous="default")
    assert keys.caller("sk-anything", 0.0) == Caller(KeyVerdict.ANONYMOUS, "default")


def test_nobody_is_let_in_where_there_is_neither_key_nor_anonymous_tenant() -> None:
    assert ring().caller("x", 0.0) == Caller(KeyVerdict.UNKNOWN, None)
    assert ring().caller(None, 0.0) == Caller(KeyVerdict.MISSING, None)


def test_an_endless_key_is_not_hashed() -> None:
    long = "x" * (MOST_KEY_CHARACTERS + 1)
    assert ring(entry(long, "a")).caller(long, 0.0).verdict is KeyVerdict.UNKNOWN


def test_forms_of_keys_and_hashes() -> None:
    assert is_key("gk-" + "A" * 43)
    assert not is_key("gk-" + "A" * 42)
    assert not is_key("sk-" + "A" * 43)
    assert is_key_hash(hash_of_key("x"))
    assert not is_key_hash("sha256:" + "A" * 64)
