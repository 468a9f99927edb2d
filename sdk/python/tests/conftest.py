"""Test fixtures: a real server that can be killed and restarted, and the two variants of the API.

`BELLGLASS_BINARY` is the server program. `BELLGLASS_TEST_DATA` is a data directory whose templates the server uses.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import ssl
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import bellglass

ROOT = Path(__file__).parents[3]
BINARY = Path(os.environ.get("BELLGLASS_BINARY", ROOT / "target/tried/bellglass"))
TEMPLATES = Path(os.environ.get("BELLGLASS_TEST_DATA", "/var/tmp/bellglass-test"))
SMALL: bellglass.Limits = {"memory_bytes": 128 << 20, "disk_bytes": 64 << 20, "disk_inodes": 1024, "tmp_bytes": 16 << 20}
PLENTY = {
    "sandboxes": 2000,
    "memory_bytes": 1 << 50,
    "disk_bytes": 1 << 50,
    "creates_per_second": 100_000,
    "execs_per_second": 100_000,
    "open": True,
}


class Server:
    """A running server with its own data directory."""

    scheme = "http"

    def __init__(self) -> None:
        self.data = Path(tempfile.mkdtemp(prefix="bellglass-sdk-"))
        self.data.chmod(0o711)
        (self.data / "layers").mkdir(mode=0o711)
        shutil.copytree(TEMPLATES / "templates", self.data / "templates")
        for name in ("analysis", "python"):
            # The packages of `interpreter` are enough for them; building each takes minutes.
            text = (self.data / "templates" / "interpreter.json").read_text()
            (self.data / "templates" / f"{name}.json").write_text(text.replace('"interpreter"', f'"{name}"'))
        for layer in (TEMPLATES / "layers").iterdir():
            (self.data / "layers" / layer.name).symlink_to(layer)
        self.address = "127.0.0.1:0"
        self._child: subprocess.Popen[str] | None = None
        self.begin()
        self.key = (self.data / "first.key").read_text().strip()
        path = f"{self.url}/v1/projects/default"
        quota = httpx.put(path, json={"quota": PLENTY}, headers=self.headers, verify=self.trust())
        quota.raise_for_status()

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.address}"

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"}

    @property
    def authority(self) -> Path | None:
        """The certificate authority to trust, if the server uses HTTPS."""
        return None

    def trust(self) -> ssl.SSLContext | bool:
        """Return the trust settings for the tests' own requests."""
        return ssl.create_default_context(cafile=self.authority) if self.authority else True

    def options(self) -> list[str]:
        """Return additional server options."""
        return []

    def begin(self) -> None:
        """Start the server. After a restart it listens on the same address."""
        key = self.data / "first.key"
        words: list[str | Path] = [
            BINARY,
            "--data",
            self.data,
            "serve",
            "--listen",
            self.address,
            "--first-key",
            key,
            *self.options(),
        ]
        with (self.data / "serve.log").open("a") as log:
            self._child = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={name: value for name, value in os.environ.items() if not name.startswith("BELLGLASS_")},
            )
        assert self._child.stdout is not None
        for line in self._child.stdout:
            if line.startswith("bellglass serves "):
                self.address = line.strip().rpartition("/")[2]
                return
        raise AssertionError((self.data / "serve.log").read_text())

    def kill(self) -> None:
        """Kill the server process without warning. Its sandboxes keep running."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()

    def restart(self, after: float = 0.5) -> None:
        """Kill the server and start it again."""
        self.kill()
        time.sleep(after)
        self.begin()

    def end(self) -> None:
        """Stop the sandboxes and the server."""
        client = bellglass.Client(self.url, self.key, ca_file=str(self.authority) if self.authority else None)
        for sandbox in client.sandboxes():
            with contextlib.suppress(bellglass.BellglassError):
                bellglass.Sandbox.connect(sandbox.id, client=client).stop()
        if self._child is not None:
            self._child.terminate()
            self._child.wait(30)
        shutil.rmtree(self.data, ignore_errors=True)


class Way:
    """One variant of the API, blocking or asynchronous. Test cases are written once, as coroutines."""

    def __init__(self, blocking: bool, server: Server) -> None:
        self.blocking, self.server = blocking, server
        kind: Any = bellglass.Client if blocking else bellglass.AsyncClient
        self.client = kind(server.url, server.key, ca_file=str(server.authority) if server.authority else None)
        self.Sandbox: Any = bellglass.Sandbox if blocking else bellglass.AsyncSandbox
        self.Session: Any = bellglass.Session if blocking else bellglass.AsyncSession

    async def do(self, called: Any) -> Any:
        """Return the result of a blocking or asynchronous call."""
        return called if self.blocking else await called

    async def each(self, items: Any) -> AsyncIterator[Any]:
        """Iterate over a blocking or asynchronous iterator."""
        if self.blocking:
            for item in items:
                yield item
        else:
            async for item in items:
                yield item

    @contextlib.asynccontextmanager
    async def sandbox(self, template: str = "base", **wanted: Any) -> AsyncIterator[Any]:
        """Create a sandbox that is stopped at the end."""
        if template == "base":
            wanted.setdefault("limits", SMALL)
        made = await self.do(self.Sandbox.create(template, client=self.client, **wanted))
        try:
            yield made
        finally:
            await self.do(made.stop())


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.end()


@pytest.fixture
def own_server() -> Iterator[Server]:
    """A server that a test may kill."""
    running = Server()
    yield running
    running.end()


@pytest.fixture(params=["threads", "event loop"])
def way(request: pytest.FixtureRequest, server: Server) -> Way:
    return Way(request.param == "threads", server)


@pytest.fixture(params=["threads", "event loop"])
def own_way(request: pytest.FixtureRequest, own_server: Server) -> Way:
    return Way(request.param == "threads", own_server)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run coroutine test cases. Blocking calls in them block the loop, which has nothing else to do."""
    case: Callable[..., Any] = pyfuncitem.obj
    if not asyncio.iscoroutinefunction(case):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    asyncio.run(case(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True
