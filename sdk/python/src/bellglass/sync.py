"""Blocking classes. Each class mirrors an asynchronous class and takes the documentation of its methods from there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .artifacts import AsyncArtifacts, AsyncDatasets
from .blocking import blocking, blocking_into, iterating
from .client import AsyncClient, BlockingCore
from .code import AsyncContexts
from .commands import AsyncCommands, AsyncExec, Line
from .files import AsyncFiles
from .outcome import End, Outcome
from .patience import Patience
from .pool import STREAMS_MAX
from .sandbox import AsyncSandbox, Wanted, find, make
from .session import AsyncSession, WantedSession, find_session, make_session
from .terminal import AsyncTerminal, AsyncTerminals
from .transport import run

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack


class Datasets:
    """The datasets of the project: files copied into sandboxes before anything runs in them."""

    def __init__(self, core: AsyncDatasets) -> None:
        self._core = core

    put = blocking(AsyncDatasets.put)
    list = blocking(AsyncDatasets.list)
    remove = blocking(AsyncDatasets.remove)


class Client:
    """A client of one server with one API key. It is thread-safe and can be used after `fork`."""

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
        self._core = BlockingCore(url, key, ca_file=ca_file, patience=patience, streams_max=streams_max)
        self.datasets = Datasets(self._core.datasets)

    @property
    def url(self) -> str:
        """The address of the server."""
        return self._core.url

    health = blocking(AsyncClient.health)
    sandboxes = blocking(AsyncClient.sandboxes)
    tools = blocking(AsyncClient.tools)
    prompt = blocking(AsyncClient.prompt)
    close = blocking(AsyncClient.close)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Exec:
    """A started command. Iterate over it to read its output line by line."""

    def __init__(self, core: AsyncExec) -> None:
        self._core = core

    @property
    def id(self) -> str:
        """The exec id; pass it to `commands.connect` to attach again."""
        return self._core.id

    @property
    def stdout(self) -> str:
        """Standard output that was read so far, by iteration or by `wait`."""
        return self._core.stdout

    @property
    def stderr(self) -> str:
        """Standard error that was read so far, by iteration or by `wait`."""
        return self._core.stderr

    @property
    def end(self) -> End | None:
        """How the command ended, or `None` until its output was read to the end."""
        return self._core.end

    chunks = iterating(AsyncExec.chunks)
    lines = iterating(AsyncExec.lines)
    wait = blocking(AsyncExec.wait)
    info = blocking(AsyncExec.info)
    kill = blocking(AsyncExec.kill)
    send_signal = blocking(AsyncExec.send_signal)
    write_stdin = blocking(AsyncExec.write_stdin)
    close_stdin = blocking(AsyncExec.close_stdin)

    def __iter__(self) -> Iterator[Line]:
        return self.lines()


class Commands:
    """Runs commands in one sandbox."""

    def __init__(self, core: AsyncCommands) -> None:
        self._core = core

    run = blocking(AsyncCommands.run)
    start = blocking_into(Exec, AsyncCommands.start)
    list = blocking(AsyncCommands.list)
    connect = blocking_into(Exec, AsyncCommands.connect)


class Files:
    """The files of one sandbox."""

    def __init__(self, core: AsyncFiles) -> None:
        self._core = core

    def as_root(self) -> Files:
        """Return the same files, accessed as root of the sandbox.

        Requests fail with `InvalidRequest` if the project of the sandbox does not allow root.
        """
        return Files(self._core.as_root())

    read = blocking(AsyncFiles.read)
    read_bytes = blocking(AsyncFiles.read_bytes)
    download = blocking(AsyncFiles.download)
    write = blocking(AsyncFiles.write)
    list = blocking(AsyncFiles.list)
    info = blocking(AsyncFiles.info)
    exists = blocking(AsyncFiles.exists)
    remove = blocking(AsyncFiles.remove)
    make_dir = blocking(AsyncFiles.make_dir)
    move = blocking(AsyncFiles.move)
    copy = blocking(AsyncFiles.copy)
    edit = blocking(AsyncFiles.edit)
    watch = iterating(AsyncFiles.watch)
    upload_archive = blocking(AsyncFiles.upload_archive)
    download_archive = blocking(AsyncFiles.download_archive)


class Contexts:
    """The contexts of one sandbox. Every method takes a context or its id."""

    def __init__(self, core: AsyncContexts) -> None:
        self._core = core

    create = blocking(AsyncContexts.create)
    list = blocking(AsyncContexts.list)
    restart = blocking(AsyncContexts.restart)
    interrupt = blocking(AsyncContexts.interrupt)
    remove = blocking(AsyncContexts.remove)
    variables = blocking(AsyncContexts.variables)


class Terminal:
    """A terminal in a sandbox. One thread may read output while another writes input."""

    def __init__(self, core: AsyncTerminal) -> None:
        self._core = core

    @property
    def id(self) -> str:
        """The exec id; pass it to `pty.connect` to attach again."""
        return self._core.id

    @property
    def end(self) -> End | None:
        """How the command ended, or `None` until its output was read to the end."""
        return self._core.end

    @property
    def outcome(self) -> Outcome | None:
        """The outcome of the command, or `None` until its output was read to the end."""
        return self._core.outcome

    write = blocking(AsyncTerminal.write)
    resize = blocking(AsyncTerminal.resize)
    send_signal = blocking(AsyncTerminal.send_signal)
    kill = blocking(AsyncTerminal.kill)
    info = blocking(AsyncTerminal.info)
    chunks = iterating(AsyncTerminal.chunks)
    texts = iterating(AsyncTerminal.texts)
    read_until = blocking(AsyncTerminal.read_until)
    wait = blocking(AsyncTerminal.wait)
    leave = blocking(AsyncTerminal.leave)

    def __iter__(self) -> Iterator[str]:
        return self.texts()


class Terminals:
    """The terminals of one sandbox."""

    def __init__(self, core: AsyncTerminals) -> None:
        self._core = core

    create = blocking_into(Terminal, AsyncTerminals.create)
    connect = blocking_into(Terminal, AsyncTerminals.connect)


class Artifacts:
    """The artifacts of one sandbox."""

    def __init__(self, core: AsyncArtifacts) -> None:
        self._core = core

    list = blocking(AsyncArtifacts.list)
    report = blocking(AsyncArtifacts.report)
    download = blocking(AsyncArtifacts.download)


class Sandbox:
    """A sandbox. If it is used as a context manager, it is stopped on exit."""

    def __init__(self, core: AsyncSandbox) -> None:
        self._core = core
        self.commands = Commands(core.commands)
        self.files = Files(core.files)
        self.contexts = Contexts(core.contexts)
        self.pty = Terminals(core.pty)
        self.artifacts = Artifacts(core.artifacts)

    @classmethod
    def create(cls, template: str = "base", *, client: Client | None = None, **wanted: Unpack[Wanted]) -> Self:
        """Create a sandbox and wait until it runs. Retries never create a second sandbox.

        Args:
            template: Name of the template.
            client: The client to use. The default client uses the server set by environment variables, or a local server
                that this process starts.
            **wanted: Further options; see `Wanted`.
        """
        return cls(run(make(_core(client)._link, template, wanted)))

    @classmethod
    def connect(cls, id_or_name: str, *, client: Client | None = None) -> Self:
        """Connect to an existing sandbox by its id or name."""
        return cls(run(find(_core(client)._link, id_or_name)))

    @property
    def id(self) -> str:
        """The id of the sandbox."""
        return self._core.id

    @property
    def name(self) -> str | None:
        """The name of the sandbox, if it has one."""
        return self._core.name

    run_code = blocking(AsyncSandbox.run_code)
    info = blocking(AsyncSandbox.info)
    usage = blocking(AsyncSandbox.usage)
    renew = blocking(AsyncSandbox.renew)
    set_idle = blocking(AsyncSandbox.set_idle)
    set_policy = blocking(AsyncSandbox.set_policy)
    port = blocking(AsyncSandbox.port)
    set_port = blocking(AsyncSandbox.set_port)
    packages = blocking(AsyncSandbox.packages)
    pause = blocking(AsyncSandbox.pause)
    resume = blocking(AsyncSandbox.resume)
    stop = blocking(AsyncSandbox.stop)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *how: Any) -> None:
        run(self._core.__aexit__(*how))


class Session:
    """A session. If it is used as a context manager, it is ended on exit."""

    def __init__(self, core: AsyncSession) -> None:
        self._core = core

    @classmethod
    def create(cls, set: str = "interpreter", *, client: Client | None = None, **wanted: Unpack[WantedSession]) -> Self:
        """Create a session. Its sandbox is created on the first tool call.

        Args:
            set: The tool set: `interpreter`, `analysis` or `python`.
            client: The client to use. The default client uses the server set by environment variables, or a local server
                that this process starts.
            **wanted: Further options; see `WantedSession`.
        """
        return cls(run(make_session(_core(client)._link, set, wanted)))

    @classmethod
    def connect(cls, id: str, *, client: Client | None = None) -> Self:
        """Connect to an existing session by its id."""
        return cls(run(find_session(_core(client)._link, id)))

    @property
    def id(self) -> str:
        """The session id; pass it to `connect` to attach again."""
        return self._core.id

    @property
    def set(self) -> str:
        """The tool set of the session: `interpreter`, `analysis` or `python`."""
        return self._core.set

    call = blocking(AsyncSession.call)
    call_tool = blocking(AsyncSession.call_tool)
    info = blocking(AsyncSession.info)
    add_dataset = blocking(AsyncSession.add_dataset)
    cleanup = blocking(AsyncSession.cleanup)
    artifacts = blocking(AsyncSession.artifacts)
    download = blocking(AsyncSession.download)
    save_artifacts = blocking(AsyncSession.save_artifacts)
    remove_artifacts = blocking(AsyncSession.remove_artifacts)
    runs = blocking(AsyncSession.runs)
    output = blocking(AsyncSession.output)
    events = iterating(AsyncSession.events)
    tools = blocking(AsyncSession.tools)
    prompt = blocking(AsyncSession.prompt)
    openai_tools = blocking(AsyncSession.openai_tools)
    handle_openai = blocking(AsyncSession.handle_openai)
    anthropic_tools = blocking(AsyncSession.anthropic_tools)
    handle_anthropic = blocking(AsyncSession.handle_anthropic)
    end = blocking(AsyncSession.end)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *how: Any) -> None:
        run(self._core.__aexit__(*how))


def _core(client: Client | None) -> BlockingCore:
    if client is not None:
        return client._core
    from .defaults import blocking_core

    return blocking_core()
