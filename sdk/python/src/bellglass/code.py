"""Run code in a sandbox, in a new process or in a context, which keeps its variables. Each code run is an exec."""

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
"""MIME types whose data is base64-encoded."""
CODE_WITHIN = 100.0
"""Timeout for requests that start an interpreter, in seconds. The server waits up to 90 s for a template's imports."""


@dataclass(frozen=True)
class Result:
    """Rich output of code, such as the value of its last expression, a figure or a table."""

    kind: str
    """`value` or `display`."""
    data: Mapping[str, Any]
    """Representations by MIME type; binary data is base64-encoded."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    name: str | None = None
    """Name of a figure, such as `figure_1.png`."""
    chart: Mapping[str, Any] | None = None
    """The data behind a matplotlib figure."""
    id: str | None = None
    update: bool = False

    @property
    def text(self) -> str | None:
        """The result as plain text, if available."""
        return self.data.get("text/plain")

    @property
    def html(self) -> str | None:
        """The result as HTML, if available."""
        return self.data.get("text/html")

    @property
    def png(self) -> str | None:
        """The result as a base64-encoded PNG image, if available."""
        return self.data.get("image/png")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the result to a local file, as an image if available, otherwise as HTML or plain text.

        Raises:
            ValueError: The result has none of these representations.
        """
        for mime in ("image/png", "image/jpeg", "image/svg+xml", "text/html", "text/plain"):
            shown = self.data.get(mime)
            if shown is not None:
                Path(path).write_bytes(base64.b64decode(shown) if mime in PACKED else str(shown).encode())
                return
        raise ValueError(f"the result has no format that can be saved: {', '.join(self.data)}")

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        return dict(self.data), dict(self.metadata)


@dataclass(frozen=True)
class CodeError:
    """An exception that the code did not catch."""

    name: str
    message: str
    text: str
    """The traceback as Python prints it."""
    frames: Sequence[Mapping[str, Any]] = ()


OnResult = Callable[[Result], Any]


@dataclass
class Execution:
    """The result of a code run."""

    id: str
    results: list[Result] = field(default_factory=list)
    """Rich output, in the order in which the code produced it."""
    stdout: str = ""
    stderr: str = ""
    error: CodeError | None = None
    notes: list[Mapping[str, Any]] = field(default_factory=list)
    """Other notices about the run, such as installed packages or a restarted context. The key `kind` is the type."""
    end: End | None = None

    @property
    def outcome(self) -> Outcome:
        """How the run ended."""
        return self.end.outcome if self.end is not None else Outcome("unknown")

    @property
    def exit_code(self) -> int:
        """Shell-style exit code, as in `Outcome.exit_code`. 0 means success."""
        return self.outcome.exit_code

    @property
    def text(self) -> str | None:
        """The value of the last expression, as plain text."""
        return next((one.text for one in reversed(self.results) if one.kind == "value"), None)

    @property
    def figures(self) -> list[Result]:
        """The results that are images, in order."""
        return [one for one in self.results if any(mime.startswith("image/") for mime in one.data)]

    def _ipython_display_(self) -> None:
        """Display output, results and error in a notebook, as if the code had run there."""
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
    """The contexts of one sandbox. Every method takes a context or its id."""

    def __init__(self, link: Link, sandbox: str) -> None:
        self._link = link
        self._path = f"/v1/sandboxes/{sandbox}/contexts"

    async def create(
        self, language: str = "python", *, cwd: str | None = None, env: Mapping[str, str] | None = None
    ) -> Context:
        """Create a Python or Bash context. Retries never create a second context."""
        ask = Ask("POST", self._path, within=CODE_WITHIN)
        spec = {"language": language, "cwd": cwd, "env": dict(env or {})}
        return decode(Context, await self._link.call(ask.json(spec).once()))

    async def list(self) -> builtins.list[Context]:
        """List all contexts."""
        return [decode(Context, item) for item in await self._link.pages(self._path)]

    async def restart(self, context: Context | str) -> Context:
        """Restart a context. Its variables are lost.

        The request is sent at most once. If the connection breaks, the raised error has `ran` set to `unknown`.
        """
        ask = Ask("POST", f"{self._of(context)}/restart", within=CODE_WITHIN)
        return decode(Context, await self._link.call(ask))

    async def interrupt(self, context: Context | str) -> Context:
        """Interrupt the running cell, if any.

        Variables survive if the cell responds to the interrupt. The request is sent at most once.
        """
        return decode(Context, await self._link.call(Ask("POST", f"{self._of(context)}/interrupt")))

    async def remove(self, context: Context | str) -> None:
        """Remove a context and stop its running cell. The call is safe to repeat."""
        await self._link.call(Ask("DELETE", self._of(context)))

    async def variables(self, context: Context | str) -> builtins.list[Variable]:
        """List the variables of a context."""
        return [decode(Variable, item) for item in await self._link.pages(f"{self._of(context)}/variables")]

    def _of(self, context: Context | str) -> str:
        return f"{self._path}/{context_id(context)}"


def context_id(context: Context | str) -> str:
    """Return the id of a context."""
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
    """Run code to completion. `on` holds the callbacks for stdout, stderr and results."""
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
    """Apply one item of rich output to the execution. Return the item if it is a result, otherwise `None`."""
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
