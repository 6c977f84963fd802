"""Stream chunks decoded by msgspec, straight into the core's records. What its typed decoder
refuses goes to the core's decoder, which is tolerant; so both accept and give the same.

The one difference: msgspec does not look for bad UTF-8 inside members that nobody asked for.
"""

import msgspec

from governor.core.chunks import Chunk
from governor.core.chunks import decode_chunk as decode_with_standard_library

_DECODER = msgspec.json.Decoder(Chunk)


def decode_chunk(data: bytes) -> Chunk:
    """As `governor.core.chunks.decode_chunk`, several times faster."""
    try:
        return _DECODER.decode(data)
    except (msgspec.MsgspecError, RecursionError):
        return decode_with_standard_library(data)
