"""Outcome and output of an exec."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from .errors import BellglassError, DeadlineExceeded, SandboxLost

T = TypeVar("T")
KEPT_BYTES_MAX = 100_000_000
"""Maximum output retained per stream, in bytes. An exec cannot retain more than this in its sandbox."""


@dataclass(frozen=True)
class Outcome:
    """How an exec ended. `kind` is one of a fixed set of values."""

    kind: str
    """`exited`, `signaled`, `timeout`, `oom`, `output_limit`, `cancelled`, `sandbox_lost` or `unknown`."""
    code: int | None = None
    signal: int | None = None
    cause: str | None = None

    @property
    def exit_code(self) -> int:
        """Shell-style exit code: the command's own code, 128 plus the signal, 124 for a timeout.

        The code is 137 for `oom`, 130 for `cancelled` and 125 for every other kind.
        """
        if self.kind == "exited" and self.code is not None:
            return self.code
        if self.kind == "signaled" and self.signal is not None:
            return 128 + self.signal
        return {"timeout": 124, "oom": 137, "cancelled": 130}.get(self.kind, 125)


@dataclass(frozen=True)
class End:
    """The final record of an exec."""

    outcome: Outcome
    stdout_bytes: int
    stderr_bytes: int
    stdout_dropped: int
    """Bytes of standard output that were not retained."""
    stderr_dropped: int
    results_bytes: int = 0
    state_lost: bool = False
    """Whether the context of this cell lost its variables."""
    duration_us: int = 0
    left_running: int = 0
    """Number of processes that were still running when the command had ended."""
    memory: Mapping[str, int] | None = None
    """`limit_bytes` and `peak_bytes`, if the outcome is `oom`."""


@dataclass(frozen=True)
class CommandResult:
    """Output and outcome of a command. A failed command does not raise an exception; see `check`."""

    stdout: str
    stderr: str
    end: End

    @property
    def outcome(self) -> Outcome:
        """How the command ended."""
        return self.end.outcome

    @property
    def exit_code(self) -> int:
        """Shell-style exit code."""
        return self.outcome.exit_code

    @property
    def ok(self) -> bool:
        """Whether the command exited with code 0."""
        return self.outcome == Outcome("exited", code=0)

    def check(self) -> CommandResult:
        """Return this result, or raise an exception if the command failed.

        Raises:
            DeadlineExceeded: The command timed out.
            SandboxLost: The sandbox was lost.
            BellglassError: The command failed in another way; `code` is the kind of the outcome.
        """
        if self.ok:
            return self
        kind = {"timeout": DeadlineExceeded, "sandbox_lost": SandboxLost}.get(self.outcome.kind, BellglassError)
        last = self.stderr.strip().rpartition("\n")[2]
        raise kind(
            f"the command ended with {self.outcome.kind}, exit code {self.exit_code}" + (f": {last}" if last else ""),
            code=self.outcome.kind,
            layer="user_code",
            ran="yes",
        )


class Kept:
    """A buffer for the bytes of one stream, up to `KEPT_BYTES_MAX`."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._length = 0

    def add(self, data: bytes) -> None:
        """Append data. Bytes beyond the limit are dropped."""
        data = data[: KEPT_BYTES_MAX - self._length]
        if data:
            self._pieces.append(data)
            self._length += len(data)

    def data(self) -> bytes:
        """Return all bytes."""
        self._pieces = [b"".join(self._pieces)]
        return self._pieces[0]

    def text(self) -> str:
        """Return all bytes as text. Invalid UTF-8 is replaced by U+FFFD."""
        return self.data().decode(errors="replace")


def decode(kind: type[T], body: Mapping[str, Any], **given: Any) -> T:
    """Build a dataclass from JSON. Unknown fields, which newer servers may send, are ignored."""
    known = {one.name for one in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in body.items() if name in known}, **given)


def end_of(body: Mapping[str, Any]) -> End:
    """Decode the final record of an exec from its JSON form."""
    rest = {name: value for name, value in body.items() if name != "outcome"}
    return decode(End, rest, outcome=decode(Outcome, body["outcome"]))
