"""What the logic needs of the outside world, and how it is run where there is no event loop.

The logic is written once, as coroutines over a `Transport`. On an event loop they are awaited. Elsewhere `run` drives
them with a transport whose methods block: such a coroutine never waits for anything, so it is finished by one `send`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Body(Protocol):
    """Bytes that are read while they are sent."""

    def __iter__(self) -> Iterator[bytes]: ...

    def __aiter__(self) -> AsyncIterator[bytes]: ...


@dataclass(frozen=True)
class Request:
    """One request, sent once."""

    method: str
    url: str
    within: float
    """How many seconds may pass without a byte."""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | Body = b""
    stream: bool = False
    """Whether its answer goes on for long. Those have connections of their own, so that they never keep a short one
    from being sent."""


class Lost(Exception):
    """No answer, or no more of it."""

    def __init__(self, why: str, *, sent: bool = True, distrusted: bool = False) -> None:
        super().__init__(why)
        self.why = why
        self.sent = sent
        """Whether the request may have arrived."""
        self.distrusted = distrusted
        """Whether the server could not show that it is the one that was named."""


class Answer(Protocol):
    """An answer whose body is still to come."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    async def chunk(self) -> bytes | None:
        """The next bytes; none at the end."""
        ...

    async def close(self) -> None: ...


class Socket(Protocol):
    """A WebSocket."""

    async def send(self, message: str | bytes) -> None: ...

    async def receive(self, within: float) -> str | bytes: ...

    async def close(self) -> None: ...


class Refused(Exception):
    """An answer that is no WebSocket, whole."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        super().__init__(f"status {status}")
        self.status, self.headers, self.body = status, headers, body


class Transport(Protocol):
    """Requests, WebSockets and pauses. Everything raises `Lost` where the connection is to blame."""

    async def open(self, request: Request) -> Answer: ...

    async def socket(self, request: Request) -> Socket: ...

    async def sleep(self, seconds: float) -> None: ...

    async def close(self) -> None: ...


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs logic to its end on a blocking transport."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    raise RuntimeError("a blocking call waited for an event loop: callbacks here must be plain functions")


def iterate(items: AsyncIterator[T]) -> Iterator[T]:
    """Runs an iterator of the logic on a blocking transport."""
    try:
        while True:
            try:
                item = run(_next(items))
            except StopAsyncIteration:
                return
            yield item
    finally:
        # Whoever stops in the middle leaves the connection as well.
        close = getattr(items, "aclose", None)
        if close is not None:
            run(close())


async def _next(items: AsyncIterator[T]) -> T:
    return await items.__anext__()
