"""Who calls: tenant from the presented key, policy from tenant and model. Fails closed."""

from collections.abc import Mapping

from governor.core.errors import RequestInvalid
from governor.core.outcomes import Priority
from governor.core.policy import NotResolved, PolicySet, Resolved


def presented_key(headers: Mapping[str, str]) -> str | None:
    """The caller's key: `Authorization: Bearer`, `x-api-key` (Anthropic) or `api-key` (Azure)."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    return headers.get("x-api-key") or headers.get("api-key")


def tenant_of(headers: Mapping[str, str], policies: PolicySet, wall_s: float) -> str:
    """The caller's tenant. Raises RequestInvalid (code invalid_api_key)."""
    caller = policies.caller(presented_key(headers), wall_s)
    if caller.tenant is None:
        raise RequestInvalid(
            f"the API key is not accepted ({caller.verdict.value})", code="invalid_api_key"
        )
    return caller.tenant


def resolve_policy(
    policies: PolicySet, tenant: str, model: str, asked: Priority | None
) -> Resolved:
    """Policy and band of this request; `asked` is the band that the client named, if any.

    Raises RequestInvalid where the model is not the tenant's.
    """
    found = policies.resolve(tenant, model, asked)
    if isinstance(found, Resolved):
        return found
    if found.reason is NotResolved.MODEL_NOT_ALLOWED:
        raise RequestInvalid(
            f"the model {model!r} is not open to this tenant", "model", code="model_not_allowed"
        )
    raise RequestInvalid("the API key names no tenant", code="invalid_api_key")
