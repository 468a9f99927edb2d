"""The two transports, one blocking and one for event loops. Both use bounded connection pools.

A pool belongs to one process, and in the asynchronous case to one event loop. Pools are therefore keyed by process and
loop: a child after `fork` gets its own pool and never writes to its parent's connections.
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
"""Connect timeout, in seconds. Even an intercontinental connection needs only a tenth of this time."""
STALL_MAX = 75.0
"""Write timeout, in seconds. A slow server accepts some data within 60 s or reports that it cannot."""
CALLS_MAX = 64
"""Maximum connections for short requests; further requests are queued. More parallelism does not make a server faster."""
STREAMS_MAX = 256
"""Maximum connections for streams: half of a server's limit per project.

Together with the connections for short requests and the program's own files, this stays below 1024 file descriptors, the
usual limit of a process.
"""
TURN_WITHIN = 600.0
"""How long a request waits for a free connection, in seconds. A stream occupies its connection until it ends."""
MESSAGE_BYTES_MAX = 1 << 20
"""Maximum size of a terminal message: four times the most that a server sends."""
KEEPALIVE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    # After 5 s of silence the kernel sends probes; when two stay unanswered, the connection is broken.
    *((socket.IPPROTO_TCP, getattr(socket, name), value) for name, value in
      (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 2)) if hasattr(socket, name)),
]  # fmt: skip


@dataclass(frozen=True)
class Wiring:
    """Connection settings."""

    url: str
    ca_file: str | None = None
    streams_max: int = STREAMS_MAX

    def trust(self) -> ssl.SSLContext | None:
        """Return the TLS trust settings, or `None` for plain HTTP."""
        if not self.url.startswith("https:"):
            return None
        return ssl.create_default_context(cafile=self.ca_file)

    def is_here(self) -> bool:
        """Return whether the server is on this machine. No proxy is used for a local server."""
        host = urlsplit(self.url).hostname or ""
        if host == "localhost":
            return True
        try:
            return ip_address(host).is_loopback
        except ValueError:
            return False

    def options(self, most: int) -> dict[str, Any]:
        """Return the options common to both HTTP clients."""
        return {
            "limits": httpx.Limits(max_connections=most, max_keepalive_connections=min(most, 20)),
            "verify": self.trust() or True,
            "trust_env": not self.is_here(),
        }

    def proxies(self) -> Any:
        """Return the proxy setting for WebSockets: no proxy for a local server, otherwise the proxy of the environment."""
        return None if self.is_here() else True


class BlockingTransport:
    """Blocking transport. Safe to use from many threads."""

    def __init__(self, wiring: Wiring) -> None:
        self._wiring = wiring
        # Keyed by process and kind. No lock: a lock that another thread holds during `fork` stays locked in the child.
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
            # Entered but never exited: `close` ends it.
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
            # If two threads race, both get the pool that was stored first.
            pool = self._pools.setdefault(key, httpx.Client(transport=transport, **options))
        return pool


class LoopTransport:
    """Transport for event loops."""

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
    """A WebSocket client that follows no redirects, so that the key is sent only to the configured server."""

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
