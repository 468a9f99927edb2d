"""The clients that are used where none is given: of the environment's server, or of one of this process's own."""

from __future__ import annotations

import asyncio

from .client import AsyncClient, BlockingCore, Default, is_configured
from .local_server import local
from .transport import run

_async: Default[AsyncClient] = Default()
_blocking: Default[BlockingCore] = Default()


async def async_client() -> AsyncClient:
    """The default client for event loops."""
    if _async.made is not None:
        return _async.made
    # A server of our own takes a moment to start, in which the loop goes on.
    return await asyncio.to_thread(_async.get, lambda: AsyncClient(*_address()))


def blocking_core() -> BlockingCore:
    """The default client for threads."""
    return _blocking.get(lambda: BlockingCore(*_address()))


def forget() -> None:
    """Forgets both, as when the server of our own was stopped."""
    _async.forget()
    core = _blocking.forget()
    if core is not None:
        run(core.close())


def _address() -> tuple[str | None, str | None]:
    if is_configured():
        return None, None
    server = local()
    return server.url, server.key
