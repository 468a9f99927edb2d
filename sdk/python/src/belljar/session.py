"""A session: an agent's conversation with one sandbox, which is made when the first tool is called."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from . import messages
from .commands import milliseconds
from .errors import BelljarError, invalid
from .link import Ask, Endless, Link, escape
from .outcome import decode
from .sandbox import Limits, link_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .client import AsyncClient

TOOL_WITHIN = 960.0
"""How long a tool's answer may take: installing and running 300 s each, and as much again for its turn."""
DATASET_WITHIN = 300.0
"""How long a dataset may be on its way."""
ARTIFACT_BYTES_MAX = 1 << 30
OUTPUT_BYTES_MAX = 100_000_000
"""No more is kept of a run's output."""


class WantedSession(TypedDict, total=False):
    """What a session is to be. What is not said is what the tool set says."""

    template: str
    persistence: str
    """What stays from one run to the next: `session`, the sandbox; or `run`, files in `/workspace`."""
    tier: str
    limits: Limits
    timeout: float
    """How many seconds a run may take: 60, at most 300."""
    idle: float
    """Its sandbox is stopped when for so many seconds nothing was asked of it: 900."""
    policy: Mapping[str, Any]


@dataclass(frozen=True)
class SessionInfo:
    """How a session is doing."""

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
    """The sandbox it has now, if it has one."""
    datasets: tuple[Mapping[str, Any], ...] = ()
    limits: Mapping[str, int] | None = None
    created_at_ms: int = 0
    ended_at_ms: int | None = None


class AsyncSession:
    """One session. As a context manager it is ended at the end."""

    def __init__(self, link: Link, info: SessionInfo) -> None:
        self._link = link
        self._path = f"/v1/sessions/{info.id}"
        #: Its id; `connect` finds it again.
        self.id = info.id
        #: Which tools it offers: `interpreter`, `analysis` or `python`.
        self.set = info.set

    @classmethod
    async def create(
        cls, set: str = "interpreter", *, client: AsyncClient | None = None, **wanted: Unpack[WantedSession]
    ) -> AsyncSession:
        """Makes a session; its sandbox is made when the first tool is called. `WantedSession` says what can be asked
        for."""
        return await make_session(await link_of(client), set, wanted)

    @classmethod
    async def connect(cls, id: str, *, client: AsyncClient | None = None) -> AsyncSession:
        """A session that is there already."""
        return await find_session(await link_of(client), id)

    async def call(self, tool: str, /, **parameters: Any) -> dict[str, Any]:
        """Calls a tool with these parameters; its result is as documented for the set."""
        return await self.call_tool(tool, parameters)

    async def call_tool(
        self, name: str, parameters: Mapping[str, Any], *, reasoning_trace: str | None = None
    ) -> dict[str, Any]:
        """The same with parameters as a mapping, and with why it is called. However often it has to be asked, it runs
        once."""
        body: dict[str, Any] = {"tool": name, "parameters": dict(parameters)}
        if reasoning_trace is not None:
            body["reasoning_trace"] = reasoning_trace
        path = f"{self._path}/tools/{escape(name)}"
        said: dict[str, Any] = await self._link.call(Ask("POST", path, within=TOOL_WITHIN, stream=True).json(body).once())
        return said

    async def info(self) -> SessionInfo:
        """How it is doing."""
        return _info(await self._link.call(Ask("GET", self._path)))

    async def add_dataset(self, name: str, data: str | bytes | os.PathLike[str]) -> dict[str, Any]:
        """Has a file copied into each of its sandboxes before anything runs: bytes, a text, or a `Path` of this
        machine."""
        if isinstance(data, os.PathLike):
            data = Path(data).read_bytes()
        body = data.encode() if isinstance(data, str) else data
        ask = Ask("PUT", f"{self._path}/datasets/{escape(name)}", body=body, within=DATASET_WITHIN)
        said: dict[str, Any] = await self._link.call(ask)
        return said

    async def cleanup(self) -> SessionInfo:
        """Ends its sandbox, after the run in progress; the next call makes a new one. Can be repeated."""
        return _info(await self._link.call(Ask("DELETE", f"{self._path}/sandbox", within=TOOL_WITHIN)))

    async def artifacts(self) -> list[dict[str, Any]]:
        """The files that its runs made: `name`, `path`, `type`, `size`."""
        return await self._link.pages(f"{self._path}/artifacts")

    async def download(self, name: str) -> bytes:
        """The bytes of one."""
        ask = Ask("GET", f"{self._path}/artifacts/{escape(name)}", stream=True)
        return await self._link.fetch(ask, ARTIFACT_BYTES_MAX)

    async def save_artifacts(self, directory: str | os.PathLike[str]) -> list[Path]:
        """Writes all of them below a directory of this machine, which is made; gives their paths. Code that nobody has read
        has chosen the names: one that leads elsewhere is refused."""
        top = Path(directory)
        saved = []
        for artifact in await self.artifacts():
            name = str(artifact["name"])
            if any(part in ("", ".", "..") for part in name.split("/")) or "\0" in name:
                raise invalid(f"an artifact is named {name!r}, which is no name below a directory", "Download it by itself.")
            path = top.joinpath(*name.split("/"))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(await self.download(name))
            saved.append(path)
        return saved

    async def remove_artifacts(self) -> int:
        """Removes all of them; says how many there were."""
        return int((await self._link.call(Ask("DELETE", f"{self._path}/artifacts")))["removed"])

    async def runs(self) -> list[dict[str, Any]]:
        """The tool calls so far, each with its result."""
        return await self._link.pages(f"{self._path}/runs")

    async def output(self, run: str, stream: str = "stdout", *, offset: int = 0, length: int | None = None) -> bytes:
        """What a run wrote, also where its result has only a part of it."""
        path = f"{self._path}/runs/{escape(run)}/output?stream={stream}&offset={offset}"
        path += "" if length is None else f"&length={length}"
        return await self._link.fetch(Ask("GET", path), OUTPUT_BYTES_MAX)

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """What happens in it from now on, until it is ended. After a connection that broke the first is `missed` with a
        count of 0: nobody knows how many."""
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
        """Its tools, as `openai`, `anthropic` or `mcp` wants them defined."""
        said: list[dict[str, Any]] = await self._link.call(Ask("GET", f"/v1/tools?set={self.set}&format={format}"))
        return said

    async def prompt(self) -> str:
        """What a model is to be told about its tools."""
        return (await self._link.fetch(Ask("GET", f"/v1/tools/prompt?set={self.set}"))).decode()

    async def openai_tools(self) -> list[dict[str, Any]]:
        """Its tools, for `tools=` of OpenAI's chat completions."""
        return await self.tools("openai")

    async def handle_openai(self, message: Any) -> list[dict[str, Any]]:
        """Makes the tool calls of an assistant's message, a dictionary or an object of OpenAI's package; gives the messages
        to answer with. What goes wrong is told to the model, never raised."""
        return [messages.openai_message(asked, await self._answered(asked)) for asked in messages.openai_calls(message)]

    async def anthropic_tools(self) -> list[dict[str, Any]]:
        """Its tools, for `tools=` of Anthropic's messages."""
        return await self.tools("anthropic")

    async def handle_anthropic(self, message: Any) -> dict[str, Any]:
        """The same for an assistant's message of Anthropic's: gives the one message to answer with. Pictures are blocks
        of their own."""
        blocks = [
            messages.anthropic_block(asked, await self._answered(asked)) for asked in messages.anthropic_calls(message)
        ]
        return {"role": "user", "content": blocks}

    async def end(self) -> SessionInfo:
        """Ends it and its sandbox; what it keeps stays. Can be repeated."""
        return _info(await self._link.call(Ask("DELETE", self._path, within=TOOL_WITHIN)))

    async def __aenter__(self) -> AsyncSession:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # What went wrong inside is what the caller is to see.
        with contextlib.suppress(*((BelljarError,) if kind else ())):
            await self.end()

    async def _answered(self, asked: messages.ToolCall) -> messages.ToolAnswer:
        if asked.wrong is not None:
            return messages.mistake(asked.wrong, "Call it again with a JSON object of its parameters.")
        try:
            return messages.ToolAnswer(await self.call_tool(asked.name, asked.parameters))
        except BelljarError as error:
            return messages.mistake(error.message, error.hint)


async def make_session(link: Link, set: str, wanted: Mapping[str, Any]) -> AsyncSession:
    """Makes a session, once."""
    body = {"set": set, **{name: value for name, value in wanted.items() if value is not None}}
    if "idle" in body:
        body["idle_ms"] = milliseconds(body.pop("idle"))
    if "timeout" in body:
        body["timeout_seconds"] = max(1, round(body.pop("timeout")))
    return AsyncSession(link, _info(await link.call(Ask("POST", "/v1/sessions").json(body).once())))


async def find_session(link: Link, id: str) -> AsyncSession:
    """A session by its id."""
    return AsyncSession(link, _info(await link.call(Ask("GET", f"/v1/sessions/{escape(id)}"))))


def _info(body: Mapping[str, Any]) -> SessionInfo:
    return decode(SessionInfo, {**body, "datasets": tuple(body.get("datasets") or ())})
