"""Process settings of the gateway, from the environment (`GOVERNOR_*`) and the command line.

Tenant policy is elsewhere (`policies/`); nothing here depends on a tenant.
"""

from pathlib import Path
from typing import Annotated

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

PACKAGED_POLICY = Path(__file__).parent.parent / "_data" / "policies" / "default.yaml"
CHECKOUT_POLICY = Path(__file__).parent.parent.parent / "policies" / "default.yaml"


def default_policy_file() -> Path:
    """The policy that ships with the project, in a wheel or in a checkout."""
    return PACKAGED_POLICY if PACKAGED_POLICY.exists() else CHECKOUT_POLICY


class Settings(BaseSettings):
    """What one gateway process needs to know before its first request."""

    model_config = SettingsConfigDict(env_prefix="GOVERNOR_", extra="ignore")

    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=0, le=65535)
    # Comma-separated base URLs; one KV pool each.
    workers: Annotated[tuple[str, ...], NoDecode] = ()
    # Bearer token that the gateway presents to its workers; clients' own never go upstream.
    worker_key: str | None = None
    policy_file: Path = Field(default_factory=default_policy_file)
    # "served-name=family" pairs for models whose name does not say what they are.
    model_families: Annotated[tuple[str, ...], NoDecode] = ()
    admission: bool = True
    max_body_bytes: int = Field(default=16 * 1024 * 1024, ge=1024)
    upstream_idle_timeout_s: float = Field(default=300.0, gt=0)
    drain_timeout_s: float = Field(default=120.0, ge=0)
    scrape_interval_s: float = Field(default=1.0, gt=0)
    lease_ttl_s: float = Field(default=60.0, gt=1)
    tick_interval_s: float = Field(default=0.1, gt=0)
    policy_poll_s: float = Field(default=2.0, gt=0)
    decision_ring: int = Field(default=10_000, ge=1)
    seed: int = 0
    log_level: str = "info"

    @field_validator("workers", "model_families", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        """Accept comma-separated text, as an environment variable holds it."""
        if isinstance(value, str):
            return tuple(part.strip().rstrip("/") for part in value.split(",") if part.strip())
        return value

    @property
    def families(self) -> tuple[tuple[str, str], ...]:
        """`model_families` as (served name, family) pairs. Raises ValueError on a bad pair."""
        pairs = []
        for text in self.model_families:
            served, equals, family = text.partition("=")
            if not equals or not served or not family:
                raise ValueError(f"model_families: expected served-name=family, found {text!r}")
            pairs.append((served, family))
        return tuple(pairs)
