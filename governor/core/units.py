"""Conversions between the units of the core: tokens and blocks, KV area, microseconds. No state."""

US_PER_S = 1_000_000


def blocks_for(tokens: int, block_size: int) -> int:
    """KV blocks that hold `tokens` tokens, rounded up.

    Raises ValueError for a negative count or a block size below one.
    """
    if tokens < 0 or block_size < 1:
        raise ValueError(f"need tokens >= 0 and block_size >= 1, got {tokens} and {block_size}")
    return -(-tokens // block_size)


def kv_area(prompt_tokens: int, output_tokens: int) -> int:
    """KV area s·o + o(o+1)/2 in token², summed per output token (arXiv 2605.04595; DESIGN §4).

    An integer, so that sums of bills are exact. Raises ValueError for a negative count.
    """
    if prompt_tokens < 0 or output_tokens < 0:
        raise ValueError(f"token counts are >= 0, got {prompt_tokens} and {output_tokens}")
    return prompt_tokens * output_tokens + output_tokens * (output_tokens + 1) // 2


def us_from_s(seconds: float) -> int:
    """Seconds as whole microseconds, rounded to the nearest."""
    return round(seconds * US_PER_S)


def s_from_us(microseconds: int) -> float:
    """Microseconds as seconds, for people and for wire formats that count in seconds."""
    return microseconds / US_PER_S
