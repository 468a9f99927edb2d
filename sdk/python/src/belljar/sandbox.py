"""One isolated place with a guest in it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from .artifacts import AsyncArtifacts
from .code import AsyncContexts, Context, Execution, OnResult, context_id, run_code
from .commands import TIMEOUT, AsyncCommands, OnText, milliseconds
from .errors import BelljarError
from .files import AsyncFiles
from .link import Ask, Link, escape
from .outcome import decode
from .terminal import AsyncTerminals

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .client import AsyncClient


class Limits(TypedDict, total=False):
    """What a sandbox may use. What is not said is the template's."""

    memory_bytes: int
    cpu_millis: int
    pids: int
    disk_bytes: int
    disk_inodes: int
    tmp_bytes: int
    ttl_ms: int


class Wanted(TypedDict, total=False):
    """What a sandbox is to be. What is not said has its default."""

    name: str
    """A name for people. No two live sandboxes of a project have the same."""
    limits: Limits
    idle: float
    """It is stopped when for so many seconds nobody has called and nothing has run: 300."""
    policy: Mapping[str, Any]
    """What may leave it, such as `{"hosts": [{"host": "api.example.org"}]}`. Nothing, unless the template says otherwise."""
    datasets: Mapping[str, str]
    """Files that are there before anything runs: where, and which dataset of the project."""
    tier: str
    """The weakest isolation that will do: `container` or `user_kernel`."""
    labels: Mapping[str, str]


@dataclass(frozen=True)
class SandboxInfo:
    """How a sandbox is doing."""

    id: str
    state: str
    """`starting`, `running`, `stopping`, `ended` or `lost`."""
    template: str
    tier: str
    idle_ms: int
    limits: Mapping[str, int]
    labels: Mapping[str, str]
    project: str
    created_at_ms: int
    name: str | None = None
    reason: str | None = None
    """Why it ended, once it has."""
    ended_at_ms: int | None = None
    policy: Mapping[str, Any] | None = None
    error: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Usage:
    """What a sandbox uses now."""

    cpu_us: int
    memory_bytes: int
    memory_peak_bytes: int
    pids: int
    execs: int


@dataclass(frozen=True)
class Port:
    """How a port of a sandbox is reached."""

    port: int
    url: str
    token: str
    """Sent as the header `belljar-token`, it opens the ports of this sandbox and nothing else."""
    public: bool

    @property
    def headers(self) -> dict[str, str]:
        """What a request to `url` needs."""
        return {"belljar-token": self.token}


class AsyncSandbox:
    """One sandbox. As a context manager it is stopped at the end."""

    def __init__(self, link: Link, info: SandboxInfo) -> None:
        self._link = link
        self._info = info
        self._path = f"/v1/sandboxes/{info.id}"
        #: Runs commands.
        self.commands = AsyncCommands(link, info.id)
        #: Reads and writes files.
        self.files = AsyncFiles(link, info.id)
        #: Interpreters that keep their variables.
        self.contexts = AsyncContexts(link, info.id)
        #: Terminals.
        self.pty = AsyncTerminals(link, info.id)
        #: Files that runs made, which outlive the sandbox.
        self.artifacts = AsyncArtifacts(link, info.id)

    @classmethod
    async def create(
        cls, template: str = "base", *, client: AsyncClient | None = None, **wanted: Unpack[Wanted]
    ) -> AsyncSandbox:
        """Makes a sandbox and waits until it runs. However often it has to be asked, one is made. `Wanted` says what can
        be asked for. Without a client the server is that of the environment, or one of this process's own."""
        return await make(await link_of(client), template, wanted)

    @classmethod
    async def connect(cls, id_or_name: str, *, client: AsyncClient | None = None) -> AsyncSandbox:
        """A sandbox that is there already."""
        return await find(await link_of(client), id_or_name)

    @property
    def id(self) -> str:
        """Its id."""
        return self._info.id

    @property
    def name(self) -> str | None:
        """Its name, if it has one."""
        return self._info.name

    async def run_code(
        self,
        code: str,
        *,
        context: Context | str | None = None,
        language: str | None = None,
        requirements: Sequence[str] | None = None,
        install_missing: bool = False,
        timeout: float | None = TIMEOUT,
        env: Mapping[str, str] | None = None,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
        on_result: OnResult | None = None,
        artifacts: Sequence[str] | Mapping[str, Any] | None = None,
    ) -> Execution:
        """Runs code to its end: Python, or what `language` or the context says. Without a context nothing of it stays but
        files. Code that raises is no exception here: `Execution.error` has it."""
        said = {
            "source": code,
            "context": None if context is None else context_id(context),
            "language": language,
            "requirements": [*(requirements or ())],
            "install_missing": install_missing,
        }
        on = (on_stdout, on_stderr, on_result)
        return await run_code(self._link, self.id, said, timeout=timeout, env=env, artifacts=artifacts, on=on)

    async def info(self) -> SandboxInfo:
        """How it is doing."""
        return self._took(await self._link.call(Ask("GET", self._path)))

    async def usage(self) -> Usage:
        """What it uses now. Looking does not keep it alive."""
        return decode(Usage, await self._link.call(Ask("GET", f"{self._path}/usage")))

    async def renew(self) -> SandboxInfo:
        """Gives it its idle time again, counted from now."""
        return await self._lease(self._info.idle_ms)

    async def set_idle(self, seconds: float) -> SandboxInfo:
        """Gives it another idle time, counted from now."""
        return await self._lease(milliseconds(seconds))

    async def set_policy(self, policy: Mapping[str, Any]) -> SandboxInfo:
        """Gives it another policy. What is under way and no longer allowed is cut."""
        return self._took(await self._link.call(Ask("PUT", f"{self._path}/policy").json(dict(policy))))

    async def port(self, port: int) -> Port:
        """How a port is reached on which a server inside listens."""
        return decode(Port, await self._link.call(Ask("GET", f"{self._path}/ports/{port}")))

    async def set_port(self, port: int, *, public: bool) -> Port:
        """Opens a port to everybody who knows its address, or closes it again."""
        return decode(Port, await self._link.call(Ask("PUT", f"{self._path}/ports/{port}").json({"public": public})))

    async def packages(self) -> list[dict[str, Any]]:
        """The packages that it was given: its lock record."""
        said: list[dict[str, Any]] = await self._link.call(Ask("GET", f"{self._path}/packages"))
        return said

    async def stop(self) -> SandboxInfo:
        """Ends it and waits until nothing of it is left. Can be repeated."""
        return self._took(await self._link.call(Ask("DELETE", self._path)))

    async def __aenter__(self) -> AsyncSandbox:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # What went wrong inside is what the caller is to see.
        with contextlib.suppress(*((BelljarError,) if kind else ())):
            await self.stop()

    async def _lease(self, idle_ms: int | None) -> SandboxInfo:
        return self._took(await self._link.call(Ask("PUT", f"{self._path}/lease").json({"idle_ms": idle_ms})))

    def _took(self, body: Mapping[str, Any]) -> SandboxInfo:
        self._info = decode(SandboxInfo, body)
        return self._info


async def make(link: Link, template: str, wanted: Mapping[str, Any]) -> AsyncSandbox:
    """Makes a sandbox, once."""
    body = {"template": template, **{name: value for name, value in wanted.items() if value is not None}}
    if "idle" in body:
        body["idle_ms"] = milliseconds(body.pop("idle"))
    said = await link.call(Ask("POST", "/v1/sandboxes").json(body).once())
    return AsyncSandbox(link, decode(SandboxInfo, said))


async def find(link: Link, id_or_name: str) -> AsyncSandbox:
    """A sandbox by its id or its name."""
    said = await link.call(Ask("GET", f"/v1/sandboxes/{escape(id_or_name)}"))
    return AsyncSandbox(link, decode(SandboxInfo, said))


async def link_of(client: AsyncClient | None) -> Link:
    """How the server is asked: as the client does, or the one that this process has where none is named."""
    if client is None:
        from .defaults import async_client

        client = await async_client()
    return client._link
