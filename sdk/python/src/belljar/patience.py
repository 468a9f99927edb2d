"""How long and how often to ask again. Pure: time is a parameter."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

PAUSE_MIN = 0.02
"""The first pause: a connection that broke by chance is there again at once."""
PAUSE_MAX = 0.5
"""The longest pause that is our own idea: half a second is not felt by a person and not by a server."""


@dataclass(frozen=True)
class Patience:
    """For how many seconds a request is repeated, from the first time it failed."""

    connection: float = 60.0
    """While no answer comes: a server that is restarted is back within this; what is away longer is down."""
    busy: float = 15.0
    """While the server has no room: whoever waits longer had better be told."""


class Trouble(Enum):
    """Why a request is to be repeated."""

    CONNECTION = "no answer, or one that says that the server is not ready"
    BUSY = "an answer that says: not now"


class Attempts:
    """One request, or one reader, in trouble."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._since: float | None = None
        self._pause = PAUSE_MIN

    def after(self, trouble: Trouble, asked: float | None, now: float) -> float | None:
        """How long to wait before the next try; none when it is time to give up. What the server asks for is
        waited for, unless that would be too long."""
        within = self._patience.connection if trouble is Trouble.CONNECTION else self._patience.busy
        if self._since is None:
            self._since = now
        pause = max(asked or 0.0, self._pause)
        self._pause = min(self._pause * 2, PAUSE_MAX)
        return pause if now - self._since + pause <= within else None

    def progress(self) -> None:
        """All is well again."""
        self._since = None
        self._pause = PAUSE_MIN
