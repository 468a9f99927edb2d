"""Scenarios, and the program that runs them one after another.

A scenario is written once for both kinds of the Python SDK, as `async def`: `await now(...)` waits for what the asynchronous kind
answers, and hands on what the synchronous one has answered already. With the synchronous kind no event loop is there at all.

Each scenario that has ended is one JSON line on standard output; the last line tells which methods were called, and how many
scenarios there are.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import json
import os
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import e2b
from methods import Record

try:
    import e2b_code_interpreter
except ImportError:
    e2b_code_interpreter = None

SUBJECTS = ("sandboxes", "paused", "commands", "files", "pty", "ports", "git", "code", "charts", "refused", "templates")
SCENARIO_SECONDS = 120
"""More than any takes on a machine under load, less than the test around it allows for all."""
SANDBOX_SECONDS = 300
POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Scenario:
    """One of them."""

    name: str
    play: Callable[[Stage], Coroutine[Any, Any, None]]
    code: bool
    """Needs the interpreter's package."""


ALL: list[Scenario] = []


def scenario(*, code: bool = False) -> Callable[[Any], Any]:
    """Makes a function one. Its name says what it shows."""

    def add(play: Any) -> Any:
        ALL.append(Scenario(play.__name__, play, code))
        return play

    return add


async def now(value: Any) -> Any:
    """What a call of either kind has answered."""
    return await value if inspect.isawaitable(value) else value


class Caught:
    """The error that a block has ended with."""

    error: Any = None

    @property
    def text(self) -> str:
        return str(self.error)


class Stage:
    """What scenarios play on."""

    def __init__(self, asynchronous: bool) -> None:
        self.asynchronous = asynchronous
        self.e2b: ModuleType = e2b
        self.code: ModuleType | None = e2b_code_interpreter
        self.record = Record()
        self.differs, self.not_offered = self.record.differs, self.record.not_offered
        self._to_kill: list[Any] = []
        self._interpreter: Any = None

    @property
    def url(self) -> str:
        """Where the server is."""
        return os.environ["E2B_SANDBOX_URL"]

    @property
    def Sandbox(self) -> Any:  # noqa: N802, it is a class
        """The plain package's class of this kind."""
        return self.of("Sandbox")

    def of(self, name: str, package: ModuleType | None = None) -> Any:
        """A class of the package, of this kind."""
        return getattr(package or self.e2b, f"Async{name}" if self.asynchronous else name)

    def has(self, name: str) -> bool:
        """Whether this release has a class."""
        return hasattr(self.e2b, name)

    async def sandbox(self, *args: Any, **kwargs: Any) -> Any:
        """A new one, killed when the scenario has ended."""
        return self.keep(await now(self.Sandbox.create(*args, **{"timeout": SANDBOX_SECONDS, **kwargs})))

    def keep(self, sandbox: Any) -> Any:
        """Kills it when the scenario has ended."""
        self._to_kill.append(sandbox)
        return sandbox

    async def interpreter(self) -> Any:
        """One for all scenarios that leave it as it was: it takes longer to start."""
        if self._interpreter is None:
            self._interpreter = await now(self.of("Sandbox", self.code).create(timeout=SANDBOX_SECONDS * 2))
        return self._interpreter

    async def pause(self, seconds: float) -> None:
        if self.asynchronous:
            await asyncio.sleep(seconds)
        else:
            time.sleep(seconds)

    async def until(self, check: Callable[[], Any], seconds: float = 30) -> Any:
        """Asks until the answer is true, and hands it on."""
        end = time.monotonic() + seconds
        while not (answer := await now(check())):
            what = check.__name__ if check.__name__ != "<lambda>" else inspect.getsource(check).strip()
            assert time.monotonic() < end, f"not within {seconds} seconds: {what}"
            await self.pause(POLL_SECONDS)
        return answer

    @contextlib.contextmanager
    def raises(self, *kinds: type[BaseException]) -> Iterator[Caught]:
        """The block ends with an error of these kinds."""
        caught = Caught()
        try:
            yield caught
        except kinds as error:
            caught.error = error
            assert str(error).strip(), f"{type(error).__name__} says nothing"
            return
        raise AssertionError(f"nothing was raised instead of {[kind.__name__ for kind in kinds]}")

    async def clear(self) -> None:
        """Kills what a scenario has made."""
        while self._to_kill:
            with contextlib.suppress(Exception):
                await now(self._to_kill.pop().kill())

    async def close(self) -> None:
        if self._interpreter is not None:
            with contextlib.suppress(Exception):
                await now(self._interpreter.kill())


def unique() -> str:
    """A word that is in no other scenario."""
    return uuid.uuid4().hex


def run(asynchronous: bool) -> None:
    """Plays the scenarios that are named on the command line, or all that are on."""
    for subject in SUBJECTS:
        importlib.import_module(f"scenarios.{subject}")
    stage = Stage(asynchronous)
    stage.record.watch(asynchronous)
    names = sys.argv[1:]
    unknown = set(names) - {one.name for one in ALL}
    if unknown:
        sys.exit(f"there is no scenario {', '.join(sorted(unknown))}; there are {', '.join(one.name for one in ALL)}")
    chosen = [one for one in ALL if (not names or one.name in names) and (stage.code or not one.code)]
    drive = _looped if asynchronous else _threaded
    passed = drive(stage, chosen)
    say({"methods": stage.record.lines(), "scenarios": len(chosen)})
    # A scenario that hangs must not keep the program from ending.
    os._exit(0 if passed else 1)


def say(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


def _looped(stage: Stage, chosen: list[Scenario]) -> bool:
    async def all_of_them() -> bool:
        results = []
        for one in chosen:
            results.append(await _played(stage, one, asyncio.wait_for(one.play(stage), SCENARIO_SECONDS)))
        await stage.close()
        return all(results)

    return asyncio.run(all_of_them())


def _threaded(stage: Stage, chosen: list[Scenario]) -> bool:
    """Each in a thread, because nothing else ends the wait for a call that never comes back."""
    results = [_driven(_played(stage, one, _in_thread(one.play(stage)))) for one in chosen]
    _driven(stage.close())
    return all(results)


async def _played(stage: Stage, one: Scenario, play: Awaitable[None]) -> bool:
    begun, error = time.monotonic(), None
    try:
        await play
    except Exception as fault:
        error = "".join(traceback.format_exception(fault))
    await stage.clear()
    stage.record.settle(error is None)
    say({"scenario": one.name, "ok": error is None, "seconds": round(time.monotonic() - begun, 2), "error": error})
    return error is None


async def _in_thread(play: Coroutine[Any, Any, None]) -> None:
    faults: list[BaseException] = []

    def body() -> None:
        try:
            _driven(play)
        except BaseException as fault:
            faults.append(fault)

    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    thread.join(SCENARIO_SECONDS)
    if thread.is_alive():
        stuck = "".join(traceback.format_stack(sys._current_frames()[thread.ident or 0]))
        raise TimeoutError(f"it did not end within {SCENARIO_SECONDS} seconds; it stands at\n{stuck}")
    if faults:
        raise faults[0]


def _driven(steps: Coroutine[Any, Any, Any]) -> Any:
    """Runs what never really waits."""
    try:
        steps.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("a scenario of the synchronous kind waits for an event loop")
