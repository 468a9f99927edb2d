"""Code in a sandbox: runs of their own, and contexts, which keep their variables. A run of code is an exec."""

from __future__ import annotations

import base64
import builtins
import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .commands import TIMEOUT, AsyncExec, OnText, _Texts, ending, keep, milliseconds, start, told
from .errors import refused
from .link import Ask, Link
from .outcome import End, Kept, Outcome, decode
from .reader import Chunk, Shown

PACKED = ("image/png", "image/jpeg")
"""What comes in base64."""
CODE_WITHIN = 100.0
"""A server waits 90 s for an interpreter that imports what its template names."""


@dataclass(frozen=True)
class Result:
    """Something that code shows besides what it writes: the value of its last expression, a figure, a table."""

    kind: str
    """`value` or `display`."""
    data: Mapping[str, Any]
    """By MIME type; bytes are in base64."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    name: str | None = None
    """The name of a figure, such as `figure_1.png`."""
    chart: Mapping[str, Any] | None = None
    """What matplotlib has drawn, as data."""
    id: str | None = None
    update: bool = False

    @property
    def text(self) -> str | None:
        """It as plain text."""
        return self.data.get("text/plain")

    @property
    def html(self) -> str | None:
        """It as HTML."""
        return self.data.get("text/html")

    @property
    def png(self) -> str | None:
        """It as a picture, in base64."""
        return self.data.get("image/png")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes it to a file of this machine: as a picture if it is one, else as HTML or text."""
        for mime in ("image/png", "image/jpeg", "image/svg+xml", "text/html", "text/plain"):
            shown = self.data.get(mime)
            if shown is not None:
                Path(path).write_bytes(base64.b64decode(shown) if mime in PACKED else str(shown).encode())
                return
        raise ValueError(f"it has no form that can be saved: {', '.join(self.data)}")

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        return dict(self.data), dict(self.metadata)


@dataclass(frozen=True)
class CodeError:
    """An exception that the code did not catch."""

    name: str
    message: str
    text: str
    """The traceback as Python would write it."""
    frames: Sequence[Mapping[str, Any]] = ()


OnResult = Callable[[Result], Any]


@dataclass
class Execution:
    """What came of a run of code."""

    id: str
    results: list[Result] = field(default_factory=list)
    """What it showed, in order."""
    stdout: str = ""
    stderr: str = ""
    error: CodeError | None = None
    notes: list[Mapping[str, Any]] = field(default_factory=list)
    """What else is said about the run, by `kind`: packages that were installed, a context that began anew."""
    end: End | None = None

    @property
    def outcome(self) -> Outcome:
        """How it ended."""
        return self.end.outcome if self.end is not None else Outcome("unknown")

    @property
    def exit_code(self) -> int:
        """0 if all went well."""
        return self.outcome.exit_code

    @property
    def text(self) -> str | None:
        """The value of the last expression as plain text."""
        return next((one.text for one in reversed(self.results) if one.kind == "value"), None)

    @property
    def figures(self) -> list[Result]:
        """What it showed that is a picture, in order."""
        return [one for one in self.results if any(mime.startswith("image/") for mime in one.data)]

    def _ipython_display_(self) -> None:
        """Shows all of it in a notebook, as if the code had run there."""
        display = importlib.import_module("IPython.display").display
        for text, file in ((self.stdout, sys.stdout), (self.stderr, sys.stderr)):
            print(text, end="", file=file)
        for one in self.results:
            display(dict(one.data), metadata=dict(one.metadata), raw=True)
        if self.error is not None:
            print(self.error.text, file=sys.stderr)


@dataclass(frozen=True)
class Context:
    """A live interpreter that keeps its variables between cells."""

    id: str
    language: str
    cwd: str = ""
    state: str = "idle"
    """`idle`, `busy` or `lost`."""
    cells: int = 0
    waiting: int = 0
    restarts: int = 0
    lost: str | None = None


@dataclass(frozen=True)
class Variable:
    """One variable of a context."""

    name: str
    type: str
    preview: str
    shape: Sequence[int] | None = None
    size: int | None = None


class AsyncContexts:
    """The contexts of one sandbox. Wherever a context is asked for, its id will do."""

    def __init__(self, link: Link, sandbox: str) -> None:
        self._link = link
        self._path = f"/v1/sandboxes/{sandbox}/contexts"

    async def create(
        self, language: str = "python", *, cwd: str | None = None, env: Mapping[str, str] | None = None
    ) -> Context:
        """Makes a context; of Python or Bash. However often it has to be asked, one is made."""
        ask = Ask("POST", self._path, within=CODE_WITHIN)
        spec = {"language": language, "cwd": cwd, "env": dict(env or {})}
        return decode(Context, await self._link.call(ask.json(spec).once()))

    async def list(self) -> builtins.list[Context]:
        """All of them."""
        return [decode(Context, item) for item in await self._link.pages(self._path)]

    async def restart(self, context: Context | str) -> Context:
        """Has a context begin anew, without its variables. It is not sent twice: when the connection breaks, the error
        says that it may have arrived."""
        ask = Ask("POST", f"{self._of(context)}/restart", within=CODE_WITHIN)
        return decode(Context, await self._link.call(ask))

    async def interrupt(self, context: Context | str) -> Context:
        """Ends the cell that runs in it, if one does; its variables stay where the cell heeds that. Not sent twice."""
        return decode(Context, await self._link.call(Ask("POST", f"{self._of(context)}/interrupt")))

    async def remove(self, context: Context | str) -> None:
        """Ends a context, and the cell that runs in it. Can be repeated."""
        await self._link.call(Ask("DELETE", self._of(context)))

    async def variables(self, context: Context | str) -> builtins.list[Variable]:
        """What it has in its variables."""
        return [decode(Variable, item) for item in await self._link.pages(f"{self._of(context)}/variables")]

    def _of(self, context: Context | str) -> str:
        return f"{self._path}/{context_id(context)}"


def context_id(context: Context | str) -> str:
    """Its id."""
    return context.id if isinstance(context, Context) else context


async def run_code(
    link: Link,
    sandbox: str,
    code: Mapping[str, Any],
    *,
    timeout: float | None = TIMEOUT,
    env: Mapping[str, str] | None = None,
    artifacts: Sequence[str] | Mapping[str, Any] | None = None,
    on: tuple[OnText | None, OnText | None, OnResult | None] = (None, None, None),
) -> Execution:
    """Runs code to its end, and tells the callbacks for output, error output and results what comes."""
    spec = {
        "code": code,
        "deadline_ms": milliseconds(timeout),
        "env": dict(env or {}),
        "artifacts": keep(artifacts),
    }
    info = await start(link, sandbox, spec, within=CODE_WITHIN)
    started = AsyncExec(link, sandbox, info.id)
    async with ending(started):
        return await _collected(started, on)


async def _collected(started: AsyncExec, on: tuple[OnText | None, OnText | None, OnResult | None]) -> Execution:
    execution = Execution(started.id)
    kept, texts = {"stdout": Kept(), "stderr": Kept()}, _Texts()
    tell = {"stdout": on[0], "stderr": on[1]}
    reader = started._reader
    try:
        while (event := await reader.next()) is not None:
            if isinstance(event, Chunk):
                kept[event.stream].add(event.data)
                await told(tell[event.stream], texts.of(event))
            elif isinstance(event, Shown):
                shown = _take(execution, event.result)
                if shown is not None:
                    await told(on[2], shown)
    finally:
        await reader.leave()
    for stream, callback in tell.items():
        await told(callback, texts.last(stream))
    execution.stdout, execution.stderr = kept["stdout"].text(), kept["stderr"].text()
    execution.end = reader.end
    return execution


def _take(execution: Execution, result: Mapping[str, Any]) -> Result | None:
    """Puts something that code showed where it belongs."""
    kind = result.get("kind")
    if kind in ("value", "display"):
        shown = decode(Result, result)
        before = [at for at, one in enumerate(execution.results) if shown.update and one.id == shown.id]
        if before:
            execution.results[before[-1]] = shown
        else:
            execution.results.append(shown)
        return shown
    if kind == "error":
        execution.error = decode(CodeError, result)
    elif kind == "clear":
        execution.results.clear()
    elif kind == "refused":
        raise refused(result["error"])
    else:
        execution.notes.append(result)
    return None
