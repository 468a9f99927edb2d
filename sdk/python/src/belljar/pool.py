"""The two transports: one that blocks its thread, one for an event loop. Both over bounded pools of connections.

A pool belongs to one process, and that of an event loop to its loop. So each is looked up by who asks: a child after
`fork` gets its own and never writes to its parent's connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

import httpx
import websockets.asyncio.client
import websockets.sync.client
import websockets.sync.connection
from websockets.exceptions import InvalidHandshake, InvalidStatus, WebSocketException

from .transport import Answer, Lost, Refused, Request, Socket

CONNECT_WITHIN = 5.0
"""A connection is made within this or not at all: even around the world it takes a tenth."""
STALL_MAX = 75.0
"""A server that takes nothing for so long is gone; one that is merely slow takes something within 60 s or says so."""
CALLS_MAX = 64
"""Connections for short requests. More wait in line: a server is no faster for being asked in parallel."""
STREAMS_MAX = 256
"""Connections for streams: half of what a server lets one project have. With the others and a program's own files they
stay below 1024 descriptors, the usual limit of a process."""
TURN_WITHIN = 600.0
"""How long a request waits for a connection: streams are let go when what they show has ended."""
MESSAGE_BYTES_MAX = 1 << 20
"""The longest message of a terminal: four times what a server sends."""
KEEPALIVE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    # After 5 s without a byte the operating system asks; at the third missing answer the connection is broken.
    *((socket.IPPROTO_TCP, getattr(socket, name), value) for name, value in
      (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 2)) if hasattr(socket, name)),
]  # fmt: skip


@dataclass(frozen=True)
class Wiring:
    """How connections are made."""

    url: str
    ca_file: str | None = None
    streams_max: int = STREAMS_MAX

    def trust(self) -> ssl.SSLContext | None:
        """Whom to trust; nothing for plain HTTP."""
        if not self.url.startswith("https:"):
            return None
        return ssl.create_default_context(cafile=self.ca_file)

    def is_here(self) -> bool:
        """Whether the server is on this machine: no proxy leads there."""
        host = urlsplit(self.url).hostname or ""
        if host == "localhost":
            return True
        try:
            return ip_address(host).is_loopback
        except ValueError:
            return False

    def options(self, most: int) -> dict[str, Any]:
        """What both kinds of client are made with."""
        return {
            "limits": httpx.Limits(max_connections=most, max_keepalive_connections=min(most, 20)),
            "verify": self.trust() or True,
            "trust_env": not self.is_here(),
        }

    def proxies(self) -> Any:
        """What a WebSocket is made with: no proxy here, elsewhere what the environment says."""
        return None if self.is_here() else True


class BlockingTransport:
    """Blocks the thread that asks. Any number of threads may."""

    def __init__(self, wiring: Wiring) -> None:
        self._wiring = wiring
        # By process and kind. A dictionary and no lock: one that is held while another thread forks stays held.
        self._pools: dict[tuple[int, bool], httpx.Client] = {}

    async def open(self, request: Request) -> Answer:
        pool = self._pool(request.stream)
        body = request.body if isinstance(request.body, bytes) else iter(request.body)
        built = pool.build_request(
            request.method, request.url, content=body, headers=request.headers, timeout=_timeout(request)
        )
        try:
            return _BlockingAnswer(pool.send(built, stream=True))
        except (httpx.HTTPError, OSError) as error:
            raise _lost(error) from error

    async def socket(self, request: Request) -> Socket:
        try:
            connecting = websockets.sync.client.connect(
                _websocket(request.url),
                additional_headers=dict(request.headers),
                open_timeout=request.within,
                ssl=self._wiring.trust(),
                max_size=MESSAGE_BYTES_MAX,
                proxy=self._wiring.proxies(),
                user_agent_header=None,
                compression=None,
            )
            # Entered, never left: `close` is the other way to end it.
            return _BlockingSocket(connecting.__enter__())
        except (WebSocketException, OSError) as error:
            raise _no_socket(error) from error

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - this transport blocks

    async def close(self) -> None:
        for key in [key for key in self._pools if key[0] == os.getpid()]:
            self._pools.pop(key).close()

    def _pool(self, stream: bool) -> httpx.Client:
        key = (os.getpid(), stream)
        pool = self._pools.get(key)
        if pool is None:
            options = self._wiring.options(self._wiring.streams_max if stream else CALLS_MAX)
            transport = httpx.HTTPTransport(limits=options.pop("limits"), verify=options["verify"], socket_options=KEEPALIVE)
            # Of two threads that come at once, both get the pool of the first.
            pool = self._pools.setdefault(key, httpx.Client(transport=transport, **options))
        return pool


class LoopTransport:
    """Waits on the event loop that asks."""

    def __init__(self, wiring: Wiring) -> None:
        self._wiring = wiring
        self._pools: weakref.WeakKeyDictionary[Any, dict[tuple[int, bool], httpx.AsyncClient]]
        self._pools = weakref.WeakKeyDictionary()

    async def open(self, request: Request) -> Answer:
        pool = self._pool(request.stream)
        body = request.body if isinstance(request.body, bytes) else request.body.__aiter__()
        built = pool.build_request(
            request.method, request.url, content=body, headers=request.headers, timeout=_timeout(request)
        )
        try:
            return _LoopAnswer(await pool.send(built, stream=True))
        except (httpx.HTTPError, OSError) as error:
            raise _lost(error) from error

    async def socket(self, request: Request) -> Socket:
        try:
            return _LoopSocket(
                await _Connect(
                    _websocket(request.url),
                    additional_headers=dict(request.headers),
                    open_timeout=request.within,
                    ssl=self._wiring.trust(),
                    max_size=MESSAGE_BYTES_MAX,
                    proxy=self._wiring.proxies(),
                    user_agent_header=None,
                    compression=None,
                )
            )
        except (WebSocketException, OSError, asyncio.TimeoutError) as error:
            raise _no_socket(error) from error

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        pools = self._pools.pop(asyncio.get_running_loop(), {})
        for (process, _), pool in pools.items():
            if process == os.getpid():
                await pool.aclose()

    def _pool(self, stream: bool) -> httpx.AsyncClient:
        pools = self._pools.setdefault(asyncio.get_running_loop(), {})
        key = (os.getpid(), stream)
        pool = pools.get(key)
        if pool is None:
            options = self._wiring.options(self._wiring.streams_max if stream else CALLS_MAX)
            transport = httpx.AsyncHTTPTransport(
                limits=options.pop("limits"), verify=options["verify"], socket_options=KEEPALIVE
            )
            pool = pools[key] = httpx.AsyncClient(transport=transport, **options)
        return pool


class _Connect(websockets.asyncio.client.connect):
    """The key goes to the server that was named and to no other."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


class _BlockingAnswer:
    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self._chunks = response.iter_raw()
        self.status: int = response.status_code
        self.headers: Mapping[str, str] = response.headers

    async def chunk(self) -> bytes | None:
        try:
            return next(self._chunks, None)
        except (httpx.HTTPError, httpx.StreamError, OSError) as error:
            raise _lost(error) from error

    async def close(self) -> None:
        with contextlib.suppress(httpx.HTTPError, OSError):
            self._response.close()


class _LoopAnswer:
    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self._chunks = response.aiter_raw()
        self.status: int = response.status_code
        self.headers: Mapping[str, str] = response.headers

    async def chunk(self) -> bytes | None:
        try:
            return await self._chunks.__anext__()
        except StopAsyncIteration:
            return None
        except (httpx.HTTPError, httpx.StreamError, OSError) as error:
            raise _lost(error) from error

    async def close(self) -> None:
        with contextlib.suppress(httpx.HTTPError, OSError):
            await self._response.aclose()


class _BlockingSocket:
    def __init__(self, connection: websockets.sync.connection.Connection) -> None:
        self._connection = connection

    async def send(self, message: str | bytes) -> None:
        try:
            self._connection.send(message)
        except (WebSocketException, OSError) as error:
            raise _lost(error) from error

    async def receive(self, within: float) -> str | bytes:
        try:
            return self._connection.recv(within)
        except (WebSocketException, OSError) as error:
            raise _lost(error) from error

    async def close(self) -> None:
        with contextlib.suppress(WebSocketException, OSError):
            self._connection.close()


class _LoopSocket:
    def __init__(self, connection: websockets.asyncio.client.ClientConnection) -> None:
        self._connection = connection

    async def send(self, message: str | bytes) -> None:
        try:
            await self._connection.send(message)
        except (WebSocketException, OSError) as error:
            raise _lost(error) from error

    async def receive(self, within: float) -> str | bytes:
        try:
            return await asyncio.wait_for(self._connection.recv(), within)
        except (WebSocketException, OSError, asyncio.TimeoutError) as error:
            raise _lost(error) from error

    async def close(self) -> None:
        with contextlib.suppress(WebSocketException, OSError):
            await self._connection.close()


def _timeout(request: Request) -> httpx.Timeout:
    return httpx.Timeout(request.within, write=min(request.within, STALL_MAX), connect=CONNECT_WITHIN, pool=TURN_WITHIN)


def _websocket(url: str) -> str:
    return "ws" + url.removeprefix("http")


def _no_socket(error: BaseException) -> Exception:
    if isinstance(error, InvalidStatus):
        response = error.response
        return Refused(response.status_code, dict(response.headers.raw_items()), bytes(response.body or b""))
    sent = isinstance(error, InvalidHandshake)
    return Lost(_why(error), sent=sent, distrusted=_is_distrust(error))


def _lost(error: BaseException) -> Lost:
    unsent = isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout))
    return Lost(_why(error), sent=not unsent, distrusted=_is_distrust(error))


def _why(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _is_distrust(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return True
        error = error.__cause__ or error.__context__
    return False
