"""Default clients, for the server set by environment variables or for a local server started by this process."""

from __future__ import annotations

import asyncio

from .client import AsyncClient, BlockingCore, Default, is_configured
from .local_server import local
from .transport import run

_async: Default[AsyncClient] = Default()
_blocking: Default[BlockingCore] = Default()


async def async_client() -> AsyncClient:
    """Return the default client for event loops."""
    if _async.made is not None:
        return _async.made
    # Starting a local server takes a moment; do not block the loop.
    return await asyncio.to_thread(_async.get, lambda: AsyncClient(*_address()))


def blocking_core() -> BlockingCore:
    """Return the default client for threads."""
    return _blocking.get(lambda: BlockingCore(*_address()))


def forget() -> None:
    """Discard both default clients, for example after the local server was stopped."""
    _async.forget()
    core = _blocking.forget()
    if core is not None:
        run(core.close())


def _address() -> tuple[str | None, str | None]:
    if is_configured():
        return None, None
    server = local()
    return server.url, server.key
