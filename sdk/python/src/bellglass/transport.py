"""The transport interface, and functions that run the client without an event loop.

The client is written once, as coroutines over a `Transport`. On an event loop they are awaited. Without
an event loop, `run` executes them with a transport whose methods block. Such a coroutine never suspends, so one `send`
completes it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Body(Protocol):
    """A request body that is read while it is sent."""

    def __iter__(self) -> Iterator[bytes]: ...

    def __aiter__(self) -> AsyncIterator[bytes]: ...


@dataclass(frozen=True)
class Request:
    """One request, sent once."""

    method: str
    url: str
    within: float
    """Maximum time in which no byte is transferred, in seconds."""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | Body = b""
    stream: bool = False
    """Whether the response is a long-lived stream. Streams have separate connections and never delay short requests."""


class Lost(Exception):
    """The response is missing or incomplete."""

    def __init__(self, why: str, *, sent: bool = True, distrusted: bool = False) -> None:
        super().__init__(why)
        self.why = why
        self.sent = sent
        """Whether the request may have reached the server."""
        self.distrusted = distrusted
        """Whether the server failed to prove its identity."""


class Answer(Protocol):
    """A response whose body has not been read."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    async def chunk(self) -> bytes | None:
        """Return the next bytes, or `None` at the end."""
        ...

    async def close(self) -> None: ...


class Socket(Protocol):
    """A WebSocket."""

    async def send(self, message: str | bytes) -> None: ...

    async def receive(self, within: float) -> str | bytes: ...

    async def close(self) -> None: ...


class Refused(Exception):
    """The HTTP response to a WebSocket request that the server rejected."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        super().__init__(f"status {status}")
        self.status, self.headers, self.body = status, headers, body


class Transport(Protocol):
    """Sends requests, opens WebSockets and sleeps. All methods raise `Lost` on connection failures."""

    async def open(self, request: Request) -> Answer: ...

    async def socket(self, request: Request) -> Socket: ...

    async def sleep(self, seconds: float) -> None: ...

    async def close(self) -> None: ...


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to completion on a blocking transport."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    raise RuntimeError("a blocking call waited for an event loop: callbacks must be plain functions")


def iterate(items: AsyncIterator[T]) -> Iterator[T]:
    """Run an asynchronous iterator on a blocking transport."""
    try:
        while True:
            try:
                item = run(_next(items))
            except StopAsyncIteration:
                return
            yield item
    finally:
        # A caller that stops early closes the connection as well.
        close = getattr(items, "aclose", None)
        if close is not None:
            run(close())


async def _next(items: AsyncIterator[T]) -> T:
    return await items.__anext__()
