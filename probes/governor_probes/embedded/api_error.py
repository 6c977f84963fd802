"""Errors that a client sees, in OpenAI's shape with vLLM's type names."""

from typing import Any

_TYPES = {400: "BadRequestError", 404: "NotFoundError", 503: "ServiceUnavailableError"}


class ApiError(Exception):
    """A refusal with an HTTP status. `param` names the field at fault, where there is one."""

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param

    def body(self) -> dict[str, Any]:
        """The JSON body."""
        return {
            "error": {
                "message": self.message,
                "type": _TYPES.get(self.status, "InternalServerError"),
                "param": self.param,
                "code": self.status,
            }
        }


def bad_request(message: str, param: str | None = None) -> ApiError:
    """A 400."""
    return ApiError(400, message, param)
