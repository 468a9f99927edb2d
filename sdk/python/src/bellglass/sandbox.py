"""Create, find, use and stop sandboxes."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from .artifacts import AsyncArtifacts
from .code import AsyncContexts, Context, Execution, OnResult, context_id, run_code
from .commands import TIMEOUT, AsyncCommands, OnText, milliseconds
from .errors import BellglassError
from .files import AsyncFiles
from .link import Ask, Link, escape
from .outcome import decode
from .terminal import AsyncTerminals

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .client import AsyncClient


class Limits(TypedDict, total=False):
    """Resource limits of a sandbox. A limit that is not set is taken from the template."""

    memory_bytes: int
    cpu_millis: int
    pids: int
    disk_bytes: int
    disk_inodes: int
    tmp_bytes: int
    ttl_ms: int


class Wanted(TypedDict, total=False):
    """Options for creating a sandbox. All of them can be omitted."""

    name: str
    """A display name. Two live sandboxes of a project cannot have the same name."""
    limits: Limits
    idle: float
    """Idle timeout in seconds, default 300.

    The sandbox is stopped after this time without any request or running process.
    """
    on_timeout: Literal["stop", "pause"]
    """What happens when the idle timeout or the time to live is over, default `stop`.

    A paused sandbox keeps its processes and their memory, and the next request resumes it.
    """
    policy: Mapping[str, Any]
    """Egress policy, such as `{"hosts": [{"host": "api.example.org"}]}`.

    Without this option the policy of the template applies, which by default allows no network access.
    """
    datasets: Mapping[str, str]
    """Datasets to copy into the sandbox before anything runs. Maps each target path to the name of a dataset."""
    tier: str
    """Minimum isolation tier: `container` or `user_kernel`."""
    labels: Mapping[str, str]


@dataclass(frozen=True)
class SandboxInfo:
    """The state of a sandbox."""

    id: str
    state: str
    """`starting`, `running`, `paused`, `stopping`, `ended` or `lost`."""
    template: str
    tier: str
    idle_ms: int
    limits: Mapping[str, int]
    labels: Mapping[str, str]
    project: str
    created_at_ms: int
    name: str | None = None
    reason: str | None = None
    """Why the sandbox ended, or `None` if it has not ended."""
    ended_at_ms: int | None = None
    policy: Mapping[str, Any] | None = None
    error: Mapping[str, Any] | None = None
    on_timeout: str = "stop"
    """`stop` or `pause`."""


@dataclass(frozen=True)
class Usage:
    """Current resource usage of a sandbox."""

    cpu_us: int
    memory_bytes: int
    memory_peak_bytes: int
    pids: int
    execs: int


@dataclass(frozen=True)
class Port:
    """URL and token for access to a port of a sandbox."""

    port: int
    url: str
    token: str
    """Token for the header `bellglass-token`. It gives access to the ports of this sandbox and to nothing else."""
    public: bool

    @property
    def headers(self) -> dict[str, str]:
        """Headers that a request to `url` needs."""
        return {"bellglass-token": self.token}


class AsyncSandbox:
    """A sandbox. If it is used as a context manager, it is stopped on exit."""

    def __init__(self, link: Link, info: SandboxInfo) -> None:
        self._link = link
        self._info = info
        self._path = f"/v1/sandboxes/{info.id}"
        #: Run commands.
        self.commands = AsyncCommands(link, info.id)
        #: Read and write files.
        self.files = AsyncFiles(link, info.id)
        #: Interpreters that keep their variables.
        self.contexts = AsyncContexts(link, info.id)
        #: Interactive terminals.
        self.pty = AsyncTerminals(link, info.id)
        #: Files created by runs; they outlive the sandbox.
        self.artifacts = AsyncArtifacts(link, info.id)

    @classmethod
    async def create(
        cls, template: str = "base", *, client: AsyncClient | None = None, **wanted: Unpack[Wanted]
    ) -> AsyncSandbox:
        """Create a sandbox and wait until it runs. Retries never create a second sandbox.

        Args:
            template: Name of the template.
            client: The client to use. The default client uses the server set by environment variables, or a local server
                that this process starts.
            **wanted: Further options; see `Wanted`.
        """
        return await make(await link_of(client), template, wanted)

    @classmethod
    async def connect(cls, id_or_name: str, *, client: AsyncClient | None = None) -> AsyncSandbox:
        """Connect to an existing sandbox by its id or name."""
        return await find(await link_of(client), id_or_name)

    @property
    def id(self) -> str:
        """The id of the sandbox."""
        return self._info.id

    @property
    def name(self) -> str | None:
        """The name of the sandbox, if it has one."""
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
        """Run code to completion.

        An uncaught exception of the code is not raised here but returned in `Execution.error`. Without a context, only
        files persist between runs.

        Args:
            code: The source code.
            context: Context to run in, or its id. A context keeps its variables between runs.
            language: Language of the code. The default is the language of the context, or Python without a context.
            requirements: Packages to install first.
            install_missing: Whether to install packages for missing imports.
            timeout: Wall-clock limit in seconds.
            on_stdout: Called with each piece of standard output as text; may be a coroutine function in async code.
            on_stderr: Like `on_stdout`, for standard error.
            on_result: Called with each result.
            artifacts: Folders whose new and changed files are kept after the run, or a mapping with folders and limits.
        """
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
        """Return the current state of the sandbox."""
        return self._took(await self._link.call(Ask("GET", self._path)))

    async def usage(self) -> Usage:
        """Return the current resource usage. This does not reset the idle timeout."""
        return decode(Usage, await self._link.call(Ask("GET", f"{self._path}/usage")))

    async def renew(self) -> SandboxInfo:
        """Restart the idle timeout."""
        return await self._lease(self._info.idle_ms)

    async def set_idle(self, seconds: float) -> SandboxInfo:
        """Set a new idle timeout in seconds, starting now."""
        return await self._lease(milliseconds(seconds))

    async def set_policy(self, policy: Mapping[str, Any]) -> SandboxInfo:
        """Replace the egress policy. Open connections that the new policy does not allow are closed."""
        return self._took(await self._link.call(Ask("PUT", f"{self._path}/policy").json(dict(policy))))

    async def port(self, port: int) -> Port:
        """Return the URL and token for a port on which a server in the sandbox listens."""
        return decode(Port, await self._link.call(Ask("GET", f"{self._path}/ports/{port}")))

    async def set_port(self, port: int, *, public: bool) -> Port:
        """Make a port public or private. Anyone who knows the URL of a public port can connect to it."""
        return decode(Port, await self._link.call(Ask("PUT", f"{self._path}/ports/{port}").json({"public": public})))

    async def packages(self) -> list[dict[str, Any]]:
        """List the packages that the sandbox has downloaded (its lock record)."""
        said: list[dict[str, Any]] = await self._link.call(Ask("GET", f"{self._path}/packages"))
        return said

    async def pause(self) -> SandboxInfo:
        """Pause the sandbox: its processes are suspended, and their memory is kept.

        The idle timeout, the time to live and the deadlines of running commands do not elapse during the pause. Any request
        that uses the sandbox resumes it. The call is safe to repeat.
        """
        return self._took(await self._link.call(Ask("POST", f"{self._path}/pause", repeatable=True)))

    async def resume(self) -> SandboxInfo:
        """Resume the sandbox. Its idle timeout and its time to live restart. The call is safe to repeat."""
        return self._took(await self._link.call(Ask("POST", f"{self._path}/resume", repeatable=True)))

    async def stop(self) -> SandboxInfo:
        """Stop the sandbox and wait until all its resources are released. The call is safe to repeat."""
        return self._took(await self._link.call(Ask("DELETE", self._path)))

    async def __aenter__(self) -> AsyncSandbox:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # Do not let an error of `stop` hide the error that ended the block.
        with contextlib.suppress(*((BellglassError,) if kind else ())):
            await self.stop()

    async def _lease(self, idle_ms: int | None) -> SandboxInfo:
        return self._took(await self._link.call(Ask("PUT", f"{self._path}/lease").json({"idle_ms": idle_ms})))

    def _took(self, body: Mapping[str, Any]) -> SandboxInfo:
        self._info = decode(SandboxInfo, body)
        return self._info


async def make(link: Link, template: str, wanted: Mapping[str, Any]) -> AsyncSandbox:
    """Create a sandbox. Retries never create a second sandbox."""
    body = {"template": template, **{name: value for name, value in wanted.items() if value is not None}}
    if "idle" in body:
        body["idle_ms"] = milliseconds(body.pop("idle"))
    said = await link.call(Ask("POST", "/v1/sandboxes").json(body).once())
    return AsyncSandbox(link, decode(SandboxInfo, said))


async def find(link: Link, id_or_name: str) -> AsyncSandbox:
    """Find a sandbox by id or name."""
    said = await link.call(Ask("GET", f"/v1/sandboxes/{escape(id_or_name)}"))
    return AsyncSandbox(link, decode(SandboxInfo, said))


async def link_of(client: AsyncClient | None) -> Link:
    """Return the link of the client, or of the default client."""
    if client is None:
        from .defaults import async_client

        client = await async_client()
    return client._link
