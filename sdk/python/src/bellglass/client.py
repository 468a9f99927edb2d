"""API clients, their configuration, and a holder for values that are created on first use."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit

from .artifacts import AsyncDatasets
from .errors import invalid
from .link import Ask, Link
from .outcome import decode
from .patience import Patience
from .pool import STREAMS_MAX, BlockingTransport, LoopTransport, Wiring
from .sandbox import SandboxInfo
from .transport import Transport

DEFAULT_URL = "http://127.0.0.1:7070"
"""Address that a server listens on by default."""
C = TypeVar("C")


class AsyncClient:
    """A client of one server with one API key.

    No connection is opened before the first request. The client can be used after `fork`. Each event loop has its own
    connections.
    """

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        ca_file: str | None = None,
        patience: Patience | None = None,
        streams_max: int = STREAMS_MAX,
    ) -> None:
        """Configure the client. No request is sent.

        Args:
            url: Address of the server. Defaults to `BELLGLASS_SERVER`, then to `http://127.0.0.1:7070`.
            key: API key. Defaults to `BELLGLASS_API_KEY`.
            ca_file: Certificate authorities to trust, as a PEM file. Defaults to `BELLGLASS_CA_FILE`.
            patience: How long to retry failed requests.
            streams_max: Maximum number of connections for streams. Further streams are queued.

        Raises:
            InvalidRequest: The address is invalid, or the key is missing or malformed.
        """
        url, key = configured(url, key)
        ca_file = ca_file or os.environ.get("BELLGLASS_CA_FILE")
        self._link = Link(self._transport(Wiring(url, ca_file, streams_max)), url, key, patience)
        #: The datasets of the project.
        self.datasets = AsyncDatasets(self._link)

    @staticmethod
    def _transport(wiring: Wiring) -> Transport:
        return LoopTransport(wiring)

    @property
    def url(self) -> str:
        """The address of the server."""
        return self._link.url

    async def health(self) -> dict[str, Any]:
        """Return the server's health report. A server is healthy if it recently started a sandbox and ran a command in it.

        Raises:
            ConnectionFailed: The server was unhealthy (503) or unreachable, and all retries failed.
        """
        said: dict[str, Any] = await self._link.call(Ask("GET", "/healthz"))
        return said

    async def sandboxes(self, *, ended: bool = False) -> list[SandboxInfo]:
        """List the project's live sandboxes. With `ended`, the list includes ended sandboxes."""
        path = f"/v1/sandboxes?limit=1000&all={'true' if ended else 'false'}"
        return [decode(SandboxInfo, item) for item in await self._link.pages(path)]

    async def tools(self, set: str, format: str = "openai") -> list[dict[str, Any]]:
        """Return the tool definitions of a tool set, in the format `openai`, `anthropic` or `mcp`."""
        said: list[dict[str, Any]] = await self._link.call(Ask("GET", f"/v1/tools?set={set}&format={format}"))
        return said

    async def prompt(self, set: str) -> str:
        """Return the system prompt text that explains the tools of a tool set to a model."""
        return (await self._link.fetch(Ask("GET", f"/v1/tools/prompt?set={set}"))).decode()

    async def close(self) -> None:
        """Close all connections. The next request opens new ones."""
        await self._link.transport.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class BlockingCore(AsyncClient):
    """The client behind the blocking classes. Its coroutines block instead of suspending, so they need no event loop."""

    @staticmethod
    def _transport(wiring: Wiring) -> Transport:
        return BlockingTransport(wiring)


class Default(Generic[C]):
    """A value created on first use, once per process. A forked child inherits the value unless `inherited` is false."""

    def __init__(self, *, inherited: bool = True) -> None:
        self._inherited = inherited
        #: The value, or `None` before the first use.
        self.made: C | None = None
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._begin_child)

    def get(self, make: Callable[[], C]) -> C:
        """Return the value. The first call creates it with `make`."""
        with self._lock:
            made = self.made
            if made is None:
                made = self.made = make()
            return made

    def forget(self) -> C | None:
        """Remove and return the value. The next `get` creates a new one."""
        with self._lock:
            made, self.made = self.made, None
            return made

    def _begin_child(self) -> None:
        # Another thread of the parent may have held the lock during `fork`.
        self._lock = threading.Lock()
        if not self._inherited:
            self.made = None


def configured(url: str | None = None, key: str | None = None) -> tuple[str, str]:
    """Return the server address and the API key, from the arguments or from environment variables.

    Raises:
        InvalidRequest: The address is invalid, or the key is missing or malformed.
    """
    url = url or os.environ.get("BELLGLASS_SERVER") or DEFAULT_URL
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username:
        raise invalid(f"{url!r} is not a valid server URL", "Use http:// or https://, a host and a port.")
    key = key or os.environ.get("BELLGLASS_API_KEY")
    if not key:
        raise invalid("no key is configured", "Set BELLGLASS_API_KEY, or pass `key` to the client.")
    if not key.strip().isascii() or not key.strip().isprintable():
        raise invalid("the key contains characters that are not valid in a key", "Copy the key again.")
    return url, key


def is_configured() -> bool:
    """Return whether an environment variable sets the server or the API key."""
    return any(os.environ.get(name) for name in ("BELLGLASS_SERVER", "BELLGLASS_API_KEY"))
