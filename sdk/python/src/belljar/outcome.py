"""How an exec ended, and what it wrote."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from .errors import BelljarError, DeadlineExceeded, SandboxLost

T = TypeVar("T")
KEPT_BYTES_MAX = 100_000_000
"""What is kept here of one stream: the most that an exec can have kept in its sandbox."""


@dataclass(frozen=True)
class Outcome:
    """How an exec ended, out of a closed set."""

    kind: str
    """`exited`, `signaled`, `timeout`, `oom`, `output_limit`, `cancelled`, `sandbox_lost` or `unknown`."""
    code: int | None = None
    signal: int | None = None
    cause: str | None = None

    @property
    def exit_code(self) -> int:
        """What a shell would show: the command's own code, or 128 and the signal, or 124 for a deadline."""
        if self.kind == "exited" and self.code is not None:
            return self.code
        if self.kind == "signaled" and self.signal is not None:
            return 128 + self.signal
        return {"timeout": 124, "oom": 137, "cancelled": 130}.get(self.kind, 125)


@dataclass(frozen=True)
class End:
    """The last thing that is told of an exec."""

    outcome: Outcome
    stdout_bytes: int
    stderr_bytes: int
    stdout_dropped: int
    """Bytes of standard output that were not kept."""
    stderr_dropped: int
    results_bytes: int = 0
    state_lost: bool = False
    """Whether the context it was a cell of lost its variables."""
    duration_us: int = 0
    left_running: int = 0
    """Processes it left behind."""
    memory: Mapping[str, int] | None = None
    """`limit_bytes` and `peak_bytes`, where the outcome is `oom`."""


@dataclass(frozen=True)
class CommandResult:
    """What a command wrote, and how it ended. A command that ran and failed is no exception; see `check`."""

    stdout: str
    stderr: str
    end: End

    @property
    def outcome(self) -> Outcome:
        """How it ended."""
        return self.end.outcome

    @property
    def exit_code(self) -> int:
        """What a shell would show."""
        return self.outcome.exit_code

    @property
    def ok(self) -> bool:
        """Whether it exited with 0."""
        return self.outcome == Outcome("exited", code=0)

    def check(self) -> CommandResult:
        """Itself, or an exception if it failed."""
        if self.ok:
            return self
        kind = {"timeout": DeadlineExceeded, "sandbox_lost": SandboxLost}.get(self.outcome.kind, BelljarError)
        last = self.stderr.strip().rpartition("\n")[2]
        raise kind(
            f"the command ended with {self.outcome.kind}, exit code {self.exit_code}" + (f": {last}" if last else ""),
            code=self.outcome.kind,
            layer="user_code",
            ran="yes",
        )


class Kept:
    """The bytes of one stream, up to a bound."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._length = 0

    def add(self, data: bytes) -> None:
        """Keeps what there is room for."""
        data = data[: KEPT_BYTES_MAX - self._length]
        if data:
            self._pieces.append(data)
            self._length += len(data)

    def data(self) -> bytes:
        """All of it."""
        self._pieces = [b"".join(self._pieces)]
        return self._pieces[0]

    def text(self) -> str:
        """All of it; what is not UTF-8 is shown as U+FFFD."""
        return self.data().decode(errors="replace")


def decode(kind: type[T], body: Mapping[str, Any], **given: Any) -> T:
    """A dataclass out of JSON. Fields that it does not know are those of a newer server."""
    known = {one.name for one in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in body.items() if name in known}, **given)


def end_of(body: Mapping[str, Any]) -> End:
    """The end of an exec as it travels."""
    rest = {name: value for name, value in body.items() if name != "outcome"}
    return decode(End, rest, outcome=decode(Outcome, body["outcome"]))
