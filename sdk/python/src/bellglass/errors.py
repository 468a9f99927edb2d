"""Exceptions. Failures that callers handle differently have their own class; `code` distinguishes all others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class BellglassError(Exception):
    """Base class of all errors. An error describes the failure, the layer that caused it, and how to fix it."""

    def __init__(
        self,
        message: str,
        *,
        code: str = "platform",
        layer: str = "platform",
        ran: str = "unknown",
        retryable: bool = False,
        hint: str = "",
    ) -> None:
        super().__init__(message)
        self.message = message
        #: Stable identifier of the failure, such as `not_found`.
        self.code = code
        #: Layer that caused the failure: `user_code`, `sandbox`, `policy` or `platform`.
        self.layer = layer
        #: Whether the request took effect: `yes`, `no` or `unknown`. `no` is a guarantee.
        self.ran = ran
        #: Whether a retry is harmless and may succeed.
        self.retryable = retryable
        #: Suggested fix.
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions are pickled between processes, and their arguments are keyword-only.
        return (_rebuilt, (type(self), self.message, dict(self.__dict__)))


class InvalidRequest(BellglassError):
    """The request is invalid or exceeds a limit; the message names the field."""


class SpawnFailed(InvalidRequest):
    """The command could not be started: it was not found or is not executable, or its directory does not exist."""


class NotFound(BellglassError):
    """The sandbox, exec, file or template does not exist in your project."""


class Conflict(BellglassError):
    """The name is in use, the file was changed, or the current state does not allow this operation."""


class Unauthorized(BellglassError):
    """The API key is not valid."""


class Forbidden(BellglassError):
    """The role of the key does not allow this operation."""


class QuotaExceeded(BellglassError):
    """The project has reached its quota."""


class RateLimited(BellglassError):
    """The project sends requests too fast, or has too many streams open."""


class NoCapacity(BellglassError):
    """The machine has no capacity for another sandbox."""


class DeadlineExceeded(BellglassError, TimeoutError):
    """An operation exceeded its time limit."""


class SandboxLost(BellglassError):
    """The sandbox has ended; the message gives the reason."""


class ConnectionFailed(BellglassError, ConnectionError):
    """The server did not respond, despite retries."""


class ProtocolBroken(BellglassError):
    """The server sent a response that violates the protocol."""


_BY_CODE: dict[str, type[BellglassError]] = {
    "invalid_request": InvalidRequest,
    "limit_exceeded": InvalidRequest,
    "too_large": InvalidRequest,
    "not_regular": InvalidRequest,
    "unsupported": InvalidRequest,
    "tier_unavailable": InvalidRequest,
    "version_unsupported": InvalidRequest,
    "spawn_failed": SpawnFailed,
    "not_found": NotFound,
    "conflict": Conflict,
    "unauthorized": Unauthorized,
    "forbidden": Forbidden,
    "quota_exceeded": QuotaExceeded,
    "rate_limited": RateLimited,
    "capacity": NoCapacity,
    "deadline": DeadlineExceeded,
    "sandbox_lost": SandboxLost,
    "protocol": ProtocolBroken,
}


def refused(body: Mapping[str, Any]) -> BellglassError:
    """Build the exception for an error that the server returned as JSON."""
    code = str(body.get("code", "platform"))
    return _BY_CODE.get(code, BellglassError)(
        str(body.get("message", "the server failed without an error message")),
        code=code,
        layer=str(body.get("layer", "platform")),
        ran=str(body.get("ran", "unknown")),
        retryable=body.get("retry") == "safe",
        hint=str(body.get("fix") or ""),
    )


def invalid(message: str, hint: str) -> InvalidRequest:
    """Build the exception for an error that was found before a request was sent."""
    return InvalidRequest(message, code="invalid_request", layer="user_code", ran="no", hint=hint)


def _rebuilt(kind: type[BellglassError], message: str, state: dict[str, Any]) -> BellglassError:
    error = kind(message)
    error.__dict__.update(state)
    return error
