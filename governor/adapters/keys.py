"""Makes keys for callers from the operating system's randomness. Stores none."""

import secrets
from dataclasses import dataclass, field

from governor.core.keys import KEY_PREFIX, KEY_RANDOM_BYTES, hash_of_key


@dataclass(frozen=True, slots=True)
class IssuedKey:
    """A key, to be shown once and kept out of any repr, and the hash for the policy file."""

    key: str = field(repr=False)
    key_hash: str


def issue_key() -> IssuedKey:
    """A key that nobody has seen: `gk-` and 43 characters, 256 bits."""
    key = KEY_PREFIX + secrets.token_urlsafe(KEY_RANDOM_BYTES)
    return IssuedKey(key, hash_of_key(key))
