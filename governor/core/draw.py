"""Draws: chance as a value, so that a decision can be replayed. No random source."""

import hashlib


def draw_for(seed: int, decision_id: str, purpose: str = "") -> float:
    """A number in [0, 1) that depends on nothing but its arguments, on every machine.

    Draws for different purposes (placement, the unlanded share, the mode's share of requests) are
    independent of each other, so that one choice does not select for another.
    """
    text = f"{seed}\x00{decision_id}\x00{purpose}".encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(text, digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / (1 << 53)
