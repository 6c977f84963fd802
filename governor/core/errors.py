"""The errors that cross module borders. One small tree; callers catch by meaning, never by text.
Knows nothing of HTTP codes."""


class GovernorError(Exception):
    """Root of everything that Governor raises on purpose."""


class PolicyInvalid(GovernorError):
    """A policy or profile cannot be used. `problems` lists every fault, not only the first."""

    def __init__(self, message: str, problems: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.problems = problems or (message,)


class RequestInvalid(GovernorError):
    """The client's request cannot be served as sent.

    `param` names the offending field; `code` is the machine-readable reason, None for a plain
    fault of form.
    """

    def __init__(self, message: str, param: str | None = None, *, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


class UpstreamFailed(GovernorError):
    """A worker did not do its part."""


class UpstreamConnectFailed(UpstreamFailed):
    """No connection to the worker; nothing was sent, so the request may be tried elsewhere."""


class UpstreamReadFailed(UpstreamFailed):
    """The connection broke while a response was expected or under way."""


class UpstreamProtocolError(UpstreamFailed):
    """The worker sent bytes that its protocol does not allow.

    `decoded` holds what the codec had decoded from the same input before the fault, so that
    raising loses nothing.
    """

    def __init__(self, message: str, decoded: tuple[object, ...] = ()) -> None:
        super().__init__(message)
        self.decoded = decoded


class UpstreamTimeout(UpstreamFailed):
    """The worker stayed silent for longer than allowed."""


class LedgerUnavailable(GovernorError):
    """The ledger cannot answer; the caller falls back to what it owns (slabs, own counts)."""


class IllegalEvent(GovernorError):
    """A state machine was given an event that its transition table does not allow."""
