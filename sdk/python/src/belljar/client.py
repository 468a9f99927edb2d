"""A server, asked with one key; and the one that is asked where none is named."""

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
"""Where a server listens unless it is told otherwise."""
C = TypeVar("C")


class AsyncClient:
    """A server, asked with one key. Nothing is sent before something is asked. Safe after `fork`; each event loop has
    connections of its own."""

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        ca_file: str | None = None,
        patience: Patience | None = None,
        streams_max: int = STREAMS_MAX,
    ) -> None:
        """The address and the key are those of `BELLJAR_SERVER` and `BELLJAR_KEY` where they are not given."""
        url, key = configured(url, key)
        ca_file = ca_file or os.environ.get("BELLJAR_CA_FILE")
        self._link = Link(self._transport(Wiring(url, ca_file, streams_max)), url, key, patience)
        #: The files that the project keeps.
        self.datasets = AsyncDatasets(self._link)

    @staticmethod
    def _transport(wiring: Wiring) -> Transport:
        return LoopTransport(wiring)

    @property
    def url(self) -> str:
        """The server's address."""
        return self._link.url

    async def health(self) -> dict[str, Any]:
        """Whether the server works: it lately started a sandbox and ran something in it."""
        said: dict[str, Any] = await self._link.call(Ask("GET", "/healthz"))
        return said

    async def sandboxes(self, *, ended: bool = False) -> list[SandboxInfo]:
        """The project's sandboxes that live; with `ended`, also those that do not any more."""
        path = f"/v1/sandboxes?limit=1000&all={'true' if ended else 'false'}"
        return [decode(SandboxInfo, item) for item in await self._link.pages(path)]

    async def tools(self, set: str, format: str = "openai") -> list[dict[str, Any]]:
        """The tools of a set, as `openai`, `anthropic` or `mcp` wants them defined."""
        said: list[dict[str, Any]] = await self._link.call(Ask("GET", f"/v1/tools?set={set}&format={format}"))
        return said

    async def prompt(self, set: str) -> str:
        """What a model is to be told about the tools of a set."""
        return (await self._link.fetch(Ask("GET", f"/v1/tools/prompt?set={set}"))).decode()

    async def close(self) -> None:
        """Closes the connections. The next request makes new ones."""
        await self._link.transport.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class BlockingCore(AsyncClient):
    """The same for threads: what it does never waits for an event loop."""

    @staticmethod
    def _transport(wiring: Wiring) -> Transport:
        return BlockingTransport(wiring)


class Default(Generic[C]):
    """What is made on first use, once for a process, and for its children where they inherit it."""

    def __init__(self, *, inherited: bool = True) -> None:
        self._inherited = inherited
        #: It, if it was made.
        self.made: C | None = None
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._begin_child)

    def get(self, make: Callable[[], C]) -> C:
        """It; made now if this is the first time."""
        with self._lock:
            made = self.made
            if made is None:
                made = self.made = make()
            return made

    def forget(self) -> C | None:
        """Takes it away, so that the next one is made anew."""
        with self._lock:
            made, self.made = self.made, None
            return made

    def _begin_child(self) -> None:
        # Another thread of the parent may have held it.
        self._lock = threading.Lock()
        if not self._inherited:
            self.made = None


def configured(url: str | None = None, key: str | None = None) -> tuple[str, str]:
    """The address and the key, out of what is given and the environment."""
    url = url or os.environ.get("BELLJAR_SERVER") or DEFAULT_URL
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username:
        raise invalid(f"{url!r} is no address of a server", "It is http:// or https://, a host and a port.")
    key = key or os.environ.get("BELLJAR_KEY")
    if not key:
        raise invalid("no key is configured", "Set BELLJAR_KEY, or give the client a `key`.")
    if not key.strip().isascii() or not key.strip().isprintable():
        raise invalid("the key holds characters that no key has", "Copy it again.")
    return url, key


def is_configured() -> bool:
    """Whether the environment names a server or a key."""
    return any(os.environ.get(name) for name in ("BELLJAR_SERVER", "BELLJAR_KEY"))
