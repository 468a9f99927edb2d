"""What can go wrong, as exceptions. There is a class of its own where a caller acts differently; `code` names the rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class BelljarError(Exception):
    """What went wrong, whose doing it was, and what to do about it."""

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
        #: The stable name of the failure, such as `not_found`.
        self.code = code
        #: Whose doing it was: `user_code`, `sandbox`, `policy` or `platform`.
        self.layer = layer
        #: Whether it may have had effects: `yes`, `no` or `unknown`. `no` is a promise.
        self.ran = ran
        #: Whether asking again does no harm and may help.
        self.retryable = retryable
        #: What to do.
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions cross processes in pools, and their arguments are keywords.
        return (_rebuilt, (type(self), self.message, dict(self.__dict__)))


class InvalidRequest(BelljarError):
    """The request is wrong or more than is allowed; the message names the field."""


class SpawnFailed(InvalidRequest):
    """The command could not be started: not found, not executable, no such directory."""


class NotFound(BelljarError):
    """There is no such sandbox, exec, file or template in your project."""


class Conflict(BelljarError):
    """The name is taken, the file changed, or it is not the time for this."""


class Unauthorized(BelljarError):
    """The key is not valid."""


class Forbidden(BelljarError):
    """The key's role is too small."""


class QuotaExceeded(BelljarError):
    """The project has all that it may have."""


class RateLimited(BelljarError):
    """The project asks too fast, or has too many streams open."""


class NoCapacity(BelljarError):
    """The machine has no room for one more."""


class DeadlineExceeded(BelljarError, TimeoutError):
    """Something took longer than it may."""


class SandboxLost(BelljarError):
    """The sandbox has ended; the message says why."""


class ConnectionFailed(BelljarError, ConnectionError):
    """No answer came from the server, however often it was asked."""


class ProtocolBroken(BelljarError):
    """The server said something that the protocol does not allow."""


_BY_CODE: dict[str, type[BelljarError]] = {
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


def refused(body: Mapping[str, Any]) -> BelljarError:
    """The exception for an error as it travels."""
    code = str(body.get("code", "platform"))
    return _BY_CODE.get(code, BelljarError)(
        str(body.get("message", "the server failed and did not say how")),
        code=code,
        layer=str(body.get("layer", "platform")),
        ran=str(body.get("ran", "unknown")),
        retryable=body.get("retry") == "safe",
        hint=str(body.get("fix") or ""),
    )


def invalid(message: str, hint: str) -> InvalidRequest:
    """The exception for a mistake that is found before anything is sent."""
    return InvalidRequest(message, code="invalid_request", layer="user_code", ran="no", hint=hint)


def _rebuilt(kind: type[BelljarError], message: str, state: dict[str, Any]) -> BelljarError:
    error = kind(message)
    error.__dict__.update(state)
    return error
