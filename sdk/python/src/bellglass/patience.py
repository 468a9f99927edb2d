"""Retry policy. It never reads the clock: the current time is a parameter."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

PAUSE_MIN = 0.02
"""First retry delay, in seconds. It is short because a connection that broke by chance can be replaced immediately."""
PAUSE_MAX = 0.5
"""Longest retry delay that the client chooses, in seconds.

It is too short for a person to notice, and long enough that retries put no load on the server.
"""


@dataclass(frozen=True)
class Patience:
    """How long a request is retried, in seconds from its first failure."""

    connection: float = 60.0
    """Retry time while no server responds. A server restart takes less time; a longer outage is reported as an error."""
    busy: float = 15.0
    """Retry time while the server has no capacity. After this time the caller gets the error."""


class Trouble(Enum):
    """Why a request is retried."""

    CONNECTION = "no response, or the server is not ready"
    BUSY = "the server has no capacity"


class Attempts:
    """Retry state of one request or one reader."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._since: float | None = None
        self._pause = PAUSE_MIN

    def after(self, trouble: Trouble, asked: float | None, now: float) -> float | None:
        """Return the delay before the next attempt, or `None` if there should be no further attempt.

        A delay requested by the server is respected, unless it exceeds the time left.
        """
        within = self._patience.connection if trouble is Trouble.CONNECTION else self._patience.busy
        if self._since is None:
            self._since = now
        pause = max(asked or 0.0, self._pause)
        self._pause = min(self._pause * 2, PAUSE_MAX)
        return pause if now - self._since + pause <= within else None

    def progress(self) -> None:
        """Reset the retry state after a success."""
        self._since = None
        self._pause = PAUSE_MIN
