"""Sessions. A session groups the tool calls of one agent. Its sandbox is created on the first tool call."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from . import messages
from .commands import milliseconds
from .errors import BellglassError, invalid
from .link import Ask, Endless, Link, escape
from .outcome import decode
from .sandbox import Limits, link_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .client import AsyncClient

TOOL_WITHIN = 960.0
"""Timeout for a tool call, in seconds: up to 300 s for installing, up to 300 s for running, and the rest for queueing."""
DATASET_WITHIN = 300.0
"""Timeout for uploading a dataset, in seconds."""
ARTIFACT_BYTES_MAX = 1 << 30
OUTPUT_BYTES_MAX = 100_000_000
"""Maximum output retained per run."""


class WantedSession(TypedDict, total=False):
    """Options for creating a session. An option that is not set is taken from the tool set."""

    template: str
    persistence: str
    """State that persists between runs: `session` keeps the sandbox, `run` keeps only the files in `/workspace`."""
    tier: str
    limits: Limits
    timeout: float
    """Time limit per run in seconds: 60 by default, at most 300."""
    idle: float
    """Idle timeout of the sandbox in seconds: 900 by default."""
    policy: Mapping[str, Any]


@dataclass(frozen=True)
class SessionInfo:
    """The state of a session."""

    id: str
    set: str
    state: str
    """`open` or `ended`."""
    template: str = ""
    persistence: str = ""
    tier: str = ""
    timeout_seconds: int = 60
    idle_ms: int = 0
    sandbox: str | None = None
    """The id of the current sandbox, if any."""
    datasets: tuple[Mapping[str, Any], ...] = ()
    limits: Mapping[str, int] | None = None
    created_at_ms: int = 0
    ended_at_ms: int | None = None


class AsyncSession:
    """A session. If it is used as a context manager, it is ended on exit."""

    def __init__(self, link: Link, info: SessionInfo) -> None:
        self._link = link
        self._path = f"/v1/sessions/{info.id}"
        #: The session id; pass it to `connect` to attach again.
        self.id = info.id
        #: The tool set of the session: `interpreter`, `analysis` or `python`.
        self.set = info.set

    @classmethod
    async def create(
        cls, set: str = "interpreter", *, client: AsyncClient | None = None, **wanted: Unpack[WantedSession]
    ) -> AsyncSession:
        """Create a session. Its sandbox is created on the first tool call.

        Args:
            set: The tool set: `interpreter`, `analysis` or `python`.
            client: The client to use. The default client uses the server set by environment variables, or a local server
                that this process starts.
            **wanted: Further options; see `WantedSession`.
        """
        return await make_session(await link_of(client), set, wanted)

    @classmethod
    async def connect(cls, id: str, *, client: AsyncClient | None = None) -> AsyncSession:
        """Connect to an existing session by its id."""
        return await find_session(await link_of(client), id)

    async def call(self, tool: str, /, **parameters: Any) -> dict[str, Any]:
        """Call a tool with these parameters and return its result, as documented for the tool set."""
        return await self.call_tool(tool, parameters)

    async def call_tool(
        self, name: str, parameters: Mapping[str, Any], *, reasoning_trace: str | None = None
    ) -> dict[str, Any]:
        """Call a tool with its parameters as a mapping. Retries never run the tool twice.

        Args:
            name: Name of the tool.
            parameters: Parameters of the tool.
            reasoning_trace: The model's reason for the call, which is stored with the run.
        """
        body: dict[str, Any] = {"tool": name, "parameters": dict(parameters)}
        if reasoning_trace is not None:
            body["reasoning_trace"] = reasoning_trace
        path = f"{self._path}/tools/{escape(name)}"
        said: dict[str, Any] = await self._link.call(Ask("POST", path, within=TOOL_WITHIN, stream=True).json(body).once())
        return said

    async def info(self) -> SessionInfo:
        """Return the current state of the session."""
        return _info(await self._link.call(Ask("GET", self._path)))

    async def add_dataset(self, name: str, data: str | bytes | os.PathLike[str]) -> dict[str, Any]:
        """Add a file that is copied into each of the session's sandboxes before anything runs.

        Args:
            name: Name of the dataset.
            data: Bytes, text, or the `Path` of a local file.
        """
        if isinstance(data, os.PathLike):
            data = Path(data).read_bytes()
        body = data.encode() if isinstance(data, str) else data
        ask = Ask("PUT", f"{self._path}/datasets/{escape(name)}", body=body, within=DATASET_WITHIN)
        said: dict[str, Any] = await self._link.call(ask)
        return said

    async def cleanup(self) -> SessionInfo:
        """Stop the sandbox when the current run has ended. The next tool call creates a new sandbox. Safe to repeat."""
        return _info(await self._link.call(Ask("DELETE", f"{self._path}/sandbox", within=TOOL_WITHIN)))

    async def artifacts(self) -> list[dict[str, Any]]:
        """List the files that runs of this session created, each with `name`, `path`, `type` and `size`."""
        return await self._link.pages(f"{self._path}/artifacts")

    async def download(self, name: str) -> bytes:
        """Return the content of an artifact."""
        ask = Ask("GET", f"{self._path}/artifacts/{escape(name)}", stream=True)
        return await self._link.fetch(ask, ARTIFACT_BYTES_MAX)

    async def save_artifacts(self, directory: str | os.PathLike[str]) -> list[Path]:
        """Write all artifacts to a local directory, which is created if necessary, and return their paths.

        Raises:
            InvalidRequest: The name of an artifact leads outside the directory. Untrusted code chooses these names.
        """
        top = Path(directory)
        saved = []
        for artifact in await self.artifacts():
            name = str(artifact["name"])
            if any(part in ("", ".", "..") for part in name.split("/")) or "\0" in name:
                raise invalid(f"the artifact name {name!r} is not a path below a directory", "Download it separately.")
            path = top.joinpath(*name.split("/"))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(await self.download(name))
            saved.append(path)
        return saved

    async def remove_artifacts(self) -> int:
        """Remove all artifacts of the session and return the number of removed artifacts."""
        return int((await self._link.call(Ask("DELETE", f"{self._path}/artifacts")))["removed"])

    async def runs(self) -> list[dict[str, Any]]:
        """List the tool calls so far, each with its result."""
        return await self._link.pages(f"{self._path}/runs")

    async def output(self, run: str, stream: str = "stdout", *, offset: int = 0, length: int | None = None) -> bytes:
        """Return the output of a run, including parts that are truncated in the result of the tool call."""
        path = f"{self._path}/runs/{escape(run)}/output?stream={stream}&offset={offset}"
        path += "" if length is None else f"&length={length}"
        return await self._link.fetch(Ask("GET", path), OUTPUT_BYTES_MAX)

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """Iterate over the session's events, from now until the session ends.

        After a reconnect, the first event is `missed` with a count of 0, because the number of missed events is unknown.
        """
        lines, heard = Endless(self._link, f"{self._path}/events"), 1
        try:
            while True:
                event = await lines.next()
                if lines.connections > heard:
                    heard = lines.connections
                    yield {"type": "missed", "count": 0}
                if event["type"] != "heartbeat":
                    yield event
                if event["type"] == "session_ended":
                    return
        finally:
            await lines.close()

    async def tools(self, format: str = "openai") -> list[dict[str, Any]]:
        """Return the tool definitions of the session, in the format `openai`, `anthropic` or `mcp`."""
        said: list[dict[str, Any]] = await self._link.call(Ask("GET", f"/v1/tools?set={self.set}&format={format}"))
        return said

    async def prompt(self) -> str:
        """Return the system prompt text that explains the session's tools to a model."""
        return (await self._link.fetch(Ask("GET", f"/v1/tools/prompt?set={self.set}"))).decode()

    async def openai_tools(self) -> list[dict[str, Any]]:
        """Return the session's tools for the `tools=` parameter of OpenAI's chat completions."""
        return await self.tools("openai")

    async def handle_openai(self, message: Any) -> list[dict[str, Any]]:
        """Execute the tool calls of an OpenAI assistant message and return the reply messages.

        The message is a dictionary or an object of OpenAI's package. Bellglass errors are reported to the model, not
        raised.
        """
        return [messages.openai_message(asked, await self._answered(asked)) for asked in messages.openai_calls(message)]

    async def anthropic_tools(self) -> list[dict[str, Any]]:
        """Return the session's tools for the `tools=` parameter of Anthropic's messages."""
        return await self.tools("anthropic")

    async def handle_anthropic(self, message: Any) -> dict[str, Any]:
        """Execute the tool calls of an Anthropic assistant message and return the reply message.

        Images become separate content blocks. Bellglass errors are reported to the model, not raised.
        """
        blocks = [
            messages.anthropic_block(asked, await self._answered(asked)) for asked in messages.anthropic_calls(message)
        ]
        return {"role": "user", "content": blocks}

    async def end(self) -> SessionInfo:
        """End the session and stop its sandbox. Stored runs and artifacts remain available. Safe to repeat."""
        return _info(await self._link.call(Ask("DELETE", self._path, within=TOOL_WITHIN)))

    async def __aenter__(self) -> AsyncSession:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # Do not let an error of `end` hide the error that ended the block.
        with contextlib.suppress(*((BellglassError,) if kind else ())):
            await self.end()

    async def _answered(self, asked: messages.ToolCall) -> messages.ToolAnswer:
        if asked.wrong is not None:
            return messages.mistake(asked.wrong, "Call it again with a JSON object of its parameters.")
        try:
            return messages.ToolAnswer(await self.call_tool(asked.name, asked.parameters))
        except BellglassError as error:
            return messages.mistake(error.message, error.hint)


async def make_session(link: Link, set: str, wanted: Mapping[str, Any]) -> AsyncSession:
    """Create a session. Retries never create a second session."""
    body = {"set": set, **{name: value for name, value in wanted.items() if value is not None}}
    if "idle" in body:
        body["idle_ms"] = milliseconds(body.pop("idle"))
    if "timeout" in body:
        body["timeout_seconds"] = max(1, round(body.pop("timeout")))
    return AsyncSession(link, _info(await link.call(Ask("POST", "/v1/sessions").json(body).once())))


async def find_session(link: Link, id: str) -> AsyncSession:
    """Find a session by id."""
    return AsyncSession(link, _info(await link.call(Ask("GET", f"/v1/sessions/{escape(id)}"))))


def _info(body: Mapping[str, Any]) -> SessionInfo:
    return decode(SessionInfo, {**body, "datasets": tuple(body.get("datasets") or ())})
