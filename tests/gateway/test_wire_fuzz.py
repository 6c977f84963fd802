"""Whatever a client sends is either refused by one typed error or can be sent on."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.core.budget import BudgetGrant
from governor.core.errors import RequestInvalid
from governor.core.outcomes import GrantReason, LandingPath, Strictness
from governor.core.policy import TenantPolicy
from governor.gateway.dialects import BUDGETS, EFFORTS, SWITCHES
from governor.gateway.extras import EXTRAS
from governor.gateway.wire import upstream_body
from tests.wire_builders import CHAT, COMPLETIONS, HELLO, parse_bytes

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
KNOWN = sorted(
    {path[0] for path, *_ in (*BUDGETS, *EFFORTS, *SWITCHES)}
    | {name for name, _ in EXTRAS}
    | {"model", "messages", "prompt", "n", "stream", "stream_options", "tools", "functions"}
    | {"max_tokens", "max_completion_tokens", "temperature", "response_format", "logprobs"}
)
INNER = sorted({key for path, *_ in (*BUDGETS, *EFFORTS, *SWITCHES) for key in path[1:]} | {"type"})
GRANT = BudgetGrant(
    thinking_tokens=100,
    grace_tokens=20,
    wrap_up_tokens=6,
    answer_reserve_tokens=32,
    completion_tokens=None,
    reason=GrantReason.POLICY_DEFAULT,
    strictness=Strictness.CAP,
    asked_tokens=None,
    floor_tokens=None,
    thinking_off=False,
)
VALUE = JSON | st.dictionaries(st.sampled_from(INNER), JSON, max_size=3)


@given(
    st.dictionaries(st.sampled_from(KNOWN), VALUE, max_size=6),
    st.booleans(),
    st.sampled_from([CHAT, COMPLETIONS]),
    st.dictionaries(st.sampled_from(["x-governor-deadline-ms", "x-governor-priority"]), st.text()),
)
def test_no_json_raises_anything_but_request_invalid(
    members: dict[str, Any], complete: bool, path: str, headers: dict[str, str]
) -> None:
    """And what was accepted can be sent on."""
    if complete:
        members = {**members, "model": "m", "messages": HELLO, "prompt": "hello"}
    everything = TenantPolicy(allow_extras=tuple(name for name, _ in EXTRAS))
    try:
        parsed = parse_bytes(json.dumps(members).encode(), path, everything, headers)
    except RequestInvalid:
        return
    assert "\n" not in "".join(parsed.notes), "notes become a header"
    upstream_body(
        parsed,
        GRANT,
        features=frozenset({"thinking_token_budget", "grace"}),
        rid="d-1.0",
        budget_path=LandingPath.NATIVE,
        asks_token_ids=True,
        governed=True,
    )


@given(st.binary(max_size=64))
def test_no_bytes_raise_anything_but_request_invalid(body: bytes) -> None:
    with pytest.raises(RequestInvalid):
        parse_bytes(body)
