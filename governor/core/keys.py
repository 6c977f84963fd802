"""Callers' keys at rest: SHA-256 of each key, whose it is, until when. Makes no keys, reads no
clock."""

import hashlib
import hmac
import re
from dataclasses import dataclass
from enum import StrEnum

KEY_PREFIX = "gk-"
# 32 random bytes in unpadded base64url. 256 bits need no slow hash: there is nothing to guess.
KEY_RANDOM_BYTES = 32
_KEY_FORM = re.compile(r"gk-[A-Za-z0-9_-]{43}")
_HASH_FORM = re.compile(r"sha256:[0-9a-f]{64}")
# Longer bearer tokens exist (JWTs), but none of them is a key of ours; hashing stays bounded.
MOST_KEY_CHARACTERS = 4_096


class KeyVerdict(StrEnum):
    """What a presented key, or the lack of one, amounts to."""

    ACCEPTED = "accepted"
    ANONYMOUS = "anonymous"
    MISSING = "missing"
    UNKNOWN = "unknown"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class KeyEntry:
    """One accepted key. `key_hash` is `sha256:` and 64 hex digits; `not_after_s` is Unix time, the
    last second at which the key is accepted, None for no end.

    Several entries may name one tenant: that is how keys are rotated with overlap.
    """

    key_hash: str
    tenant: str
    not_after_s: int | None = None


@dataclass(frozen=True, slots=True)
class Caller:
    """Who a caller is. `tenant` is None unless the verdict is `accepted` or `anonymous`."""

    verdict: KeyVerdict
    tenant: str | None


def is_key(text: str) -> bool:
    """Whether `text` has the form of a key that Governor issues."""
    return _KEY_FORM.fullmatch(text) is not None


def is_key_hash(text: str) -> bool:
    """Whether `text` has the form in which keys are stored."""
    return _HASH_FORM.fullmatch(text) is not None


def hash_of_key(key: str) -> str:
    """The form in which `key` is stored. Any text is a key; the form `gk-…` is only what we issue.

    A caller's bytes may be no UTF-8 and then arrive with surrogates, which are hashed as they are.
    """
    return "sha256:" + hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


class KeyRing:
    """Finds the tenant of a presented key. Immutable once made.

    The search is by the key's hash: what its time could tell of the stored hashes helps nobody to
    find a key that hashes to one. The last comparison is of constant time all the same.
    """

    __slots__ = ("_anonymous_tenant", "_entries")

    def __init__(self, entries: tuple[KeyEntry, ...], anonymous_tenant: str | None) -> None:
        self._entries = {entry.key_hash: entry for entry in entries}
        self._anonymous_tenant = anonymous_tenant

    def caller(self, presented: str | None, wall_s: float) -> Caller:
        """Who presents this key at `wall_s` (Unix time). None or an empty text is no key.

        A ring without any entry takes every key: clients such as the OpenAI SDK always send one.
        """
        if not presented or not self._entries:
            if self._anonymous_tenant is None:
                return Caller(KeyVerdict.MISSING if not presented else KeyVerdict.UNKNOWN, None)
            return Caller(KeyVerdict.ANONYMOUS, self._anonymous_tenant)
        if len(presented) > MOST_KEY_CHARACTERS:
            return Caller(KeyVerdict.UNKNOWN, None)
        digest = hash_of_key(presented)
        entry = self._entries.get(digest)
        if entry is None or not hmac.compare_digest(entry.key_hash, digest):
            return Caller(KeyVerdict.UNKNOWN, None)
        if entry.not_after_s is not None and wall_s > entry.not_after_s:
            return Caller(KeyVerdict.EXPIRED, None)
        return Caller(KeyVerdict.ACCEPTED, entry.tenant)
