"""Contract (a): what a worker says of running requests (signals), what it is told (control).

Values, their JSON-ready forms and the join of a request's rows. No transport.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntFlag, StrEnum
from typing import Any

from governor.core.errors import UpstreamProtocolError

SIGNALS_SCHEMA = "governor.signals/1"
CONTROL_SCHEMA = "governor.control/1"

_ROW_COLUMNS = 8


class SignalFlag(IntFlag):
    """Bits of a row's `flags`. GAP: the feed dropped rows before this one, of any request."""

    NON_FINITE = 1
    GAP = 2
    ANSWERING = 4
    LANDING = 8
    RECOMPUTED = 16
    FINISHED = 32


class ControlOp(StrEnum):
    """What a worker can be told of a running request."""

    LAND = "land"
    BUDGET = "budget"
    CUT = "cut"


class ControlStatus(StrEnum):
    """A worker's answer. `UNKNOWN` is ours, for a status that this version does not know."""

    APPLIED = "applied"
    ALREADY_LANDING = "already_landing"
    THINKING_OVER = "thinking_over"
    UNKNOWN_REQUEST = "unknown_request"
    STALE_FENCE = "stale_fence"
    INVALID = "invalid"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class SignalRow:
    """One row of a worker's feed.

    `position` is the count of output tokens after this row, `tokens` the ids since the row before.
    `entropy` is in nats, the mean over the row's tokens; `margin` is the log-probability of the
    best token minus that of the end-of-thinking token, at the last one; `value` is the value
    probe's. None is missing, never 0.
    """

    rid: str
    attempt: int
    position: int
    tokens: tuple[int, ...]
    entropy: float | None = None
    margin: float | None = None
    value: float | None = None
    flags: int = 0

    @property
    def answering(self) -> bool:
        """Whether thinking is over at `position`."""
        return bool(self.flags & SignalFlag.ANSWERING)

    @property
    def landing(self) -> bool:
        """Whether the engine forced wrap-up tokens in this row or is about to."""
        return bool(self.flags & SignalFlag.LANDING)

    @property
    def finished(self) -> bool:
        """Whether the request's output is complete."""
        return bool(self.flags & SignalFlag.FINISHED)


@dataclass(frozen=True, slots=True)
class SignalBatch:
    """One message of the feed. `seq` counts up by one within a subscription.

    `faults` is the number of rows that could not be read and were left out.
    """

    worker_epoch: str
    seq: int
    rows: tuple[SignalRow, ...]
    faults: int = 0


@dataclass(frozen=True, slots=True)
class Control:
    """One instruction. A worker refuses a `fence` older than the last one that it applied.

    `arg`: for land `{grace_tokens, text, reason}`, for budget `{tokens, grace_tokens}`, else None.
    """

    rid: str
    attempt: int
    op: ControlOp
    arg: Mapping[str, Any] | None
    fence: int


@dataclass(frozen=True, slots=True)
class ControlAck:
    """The worker's answer; `position` is the output tokens at the moment of applying."""

    rid: str
    attempt: int
    fence: int
    status: ControlStatus
    position: int | None = None
    detail: str | None = None


class SignalJoin:
    """Joins the rows of one request: each output token once, in order, across recomputation.

    `attempt` is the first one of interest: rows of an older one and repeated positions are dropped;
    a row that overlaps what is known is shortened; a jump in positions is a gap: counted, and its
    tokens stay missing.
    """

    __slots__ = ("attempt", "gaps", "missing_tokens", "position", "repeats")

    def __init__(self, attempt: int = 0) -> None:
        self.attempt = attempt
        self.position = 0
        self.gaps = 0
        self.missing_tokens = 0
        self.repeats = 0

    def accept(self, row: SignalRow) -> SignalRow | None:
        """The row without what is already known; None when nothing in it is fresh."""
        if row.attempt != self.attempt:
            if row.attempt < self.attempt:
                self.repeats += 1
                return None
            self.attempt, self.position = row.attempt, 0
        fresh = row.position - self.position
        if fresh <= 0:
            self.repeats += 1
            return None
        known = len(row.tokens)
        self.position = row.position
        if fresh > known:
            self.gaps += 1
            self.missing_tokens += fresh - known
        elif fresh < known:
            self.repeats += 1
            return replace(row, tokens=row.tokens[known - fresh :])
        return row


def decode_batch(message: object) -> SignalBatch:
    """One message of the feed from its JSON value.

    Tolerant towards additions: further members and columns are ignored, unreadable rows counted.
    Raises UpstreamProtocolError for another schema or a broken envelope.
    """
    if not isinstance(message, dict) or message.get("schema") != SIGNALS_SCHEMA:
        raise UpstreamProtocolError(f"not a {SIGNALS_SCHEMA} message: {message!r:.80}")
    epoch, seq, rows = message.get("worker_epoch"), message.get("seq"), message.get("rows")
    if not isinstance(epoch, str) or type(seq) is not int or not isinstance(rows, list):
        raise UpstreamProtocolError(f"broken signals envelope: {message!r:.80}")
    decoded = [_row(row) for row in rows]
    kept = tuple(row for row in decoded if row is not None)
    return SignalBatch(epoch, seq, kept, len(decoded) - len(kept))


def encode_batch(batch: SignalBatch) -> dict[str, Any]:
    """The JSON-ready form of a batch; `faults` is the reader's own and not part of it."""
    rows = [
        [r.rid, r.attempt, r.position, list(r.tokens), r.entropy, r.margin, r.value, int(r.flags)]
        for r in batch.rows
    ]
    return {
        "schema": SIGNALS_SCHEMA,
        "worker_epoch": batch.worker_epoch,
        "seq": batch.seq,
        "rows": rows,
    }


def encode_control(control: Control) -> dict[str, Any]:
    """The JSON-ready form of an instruction."""
    return {
        "schema": CONTROL_SCHEMA,
        "rid": control.rid,
        "attempt": control.attempt,
        "op": control.op.value,
        "arg": None if control.arg is None else dict(control.arg),
        "fence": control.fence,
    }


def decode_control(message: object) -> Control:
    """An instruction from its JSON value. Raises UpstreamProtocolError."""
    fields = _control_fields(message)
    arg = fields.get("arg")
    try:
        op = ControlOp(str(fields.get("op")))
    except ValueError:
        raise UpstreamProtocolError(f"unknown control op {fields.get('op')!r:.40}") from None
    if arg is not None and not isinstance(arg, dict):
        raise UpstreamProtocolError(f"control arg must be an object or null, got {arg!r:.40}")
    return Control(fields["rid"], fields["attempt"], op, arg, fields["fence"])


def encode_ack(ack: ControlAck) -> dict[str, Any]:
    """The JSON-ready form of an answer."""
    return {
        "schema": CONTROL_SCHEMA,
        "rid": ack.rid,
        "attempt": ack.attempt,
        "fence": ack.fence,
        "status": ack.status.value,
        "position": ack.position,
        "detail": ack.detail,
    }


def decode_ack(message: object) -> ControlAck:
    """An answer from its JSON value; a status that is not known here becomes UNKNOWN, spelt out in
    `detail`. Raises UpstreamProtocolError for anything that is no answer."""
    fields = _control_fields(message)
    said, position, detail = (fields.get(name) for name in ("status", "position", "detail"))
    if not isinstance(said, str):
        raise UpstreamProtocolError(f"control answer without a status: {message!r:.80}")
    try:
        status = ControlStatus(said)
    except ValueError:
        status, detail = ControlStatus.UNKNOWN, f"status {said!r:.40}: {detail or 'no detail'}"
    return ControlAck(
        fields["rid"],
        fields["attempt"],
        fields["fence"],
        status,
        position if type(position) is int else None,
        detail if isinstance(detail, str) else None,
    )


def _control_fields(message: object) -> dict[str, Any]:
    if not isinstance(message, dict) or message.get("schema") != CONTROL_SCHEMA:
        raise UpstreamProtocolError(f"not a {CONTROL_SCHEMA} message: {message!r:.80}")
    if not isinstance(message.get("rid"), str):
        raise UpstreamProtocolError(f"control message without a rid: {message!r:.80}")
    for name in ("attempt", "fence"):
        if type(message.get(name)) is not int:
            raise UpstreamProtocolError(f"control message without {name}: {message!r:.80}")
    return message


def _row(row: object) -> SignalRow | None:
    if not isinstance(row, list) or len(row) < _ROW_COLUMNS:
        return None
    rid, attempt, position, tokens, entropy, margin, value, flags = row[:_ROW_COLUMNS]
    counts = (attempt, position, flags)
    if not isinstance(rid, str) or any(type(n) is not int or n < 0 for n in counts):
        return None
    if not isinstance(tokens, list) or any(type(token) is not int for token in tokens):
        return None
    return SignalRow(
        rid,
        attempt,
        position,
        tuple(tokens),
        _number(entropy),
        _number(margin),
        _number(value),
        flags,
    )


def _number(value: object) -> float | None:
    """A finite number; anything else is missing."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if -1e300 < value < 1e300 else None
