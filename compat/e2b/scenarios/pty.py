"""Terminals."""

from __future__ import annotations

from typing import Any

import e2b
from scenario import Stage, now, scenario


class Screen:
    """What a terminal has shown. The synchronous kind is read here, the asynchronous one calls."""

    def __init__(self, stage: Stage) -> None:
        self._stage, self._shown = stage, b""
        self._handle: Any = None

    async def open(self, sandbox: Any, **options: Any) -> Any:
        call = {"on_data": self.add} if self._stage.asynchronous else {}
        self._handle = await now(sandbox.pty.create(e2b.PtySize(rows=24, cols=80), **call, **options))
        return self._handle

    def add(self, data: bytes) -> None:
        self._shown += bytes(data)

    async def shows(self, text: str) -> None:
        """Waits until it does."""
        if self._stage.asynchronous:
            await self._stage.until(lambda: text.encode() in self._shown)
            return
        while text.encode() not in self._shown:
            self.add(next(data for _, _, data in self._handle if data))

    async def ends(self) -> int:
        """The code that its shell ends with."""
        try:
            ended = await now(self._handle.wait())
        except e2b.CommandExitException as error:
            return int(error.exit_code)
        return int(ended.exit_code)


@scenario()
async def pty_input_resize_and_exit(stage: Stage) -> None:
    sandbox = await stage.sandbox()
    screen = Screen(stage)
    handle = await screen.open(sandbox, cwd="/tmp", envs={"COLOUR": "green"})
    await now(sandbox.pty.send_stdin(handle.pid, b"stty size; echo $((6 * 7)) $COLOUR $TERM $(whoami) $PWD\n"))
    await screen.shows("24 80")
    await screen.shows("42 green xterm-256color user /tmp")
    await now(sandbox.pty.resize(handle.pid, e2b.PtySize(rows=30, cols=100)))
    await now(sandbox.pty.send_stdin(handle.pid, b"stty size\n"))
    await screen.shows("30 100")
    await now(sandbox.pty.send_stdin(handle.pid, b"exit 7\n"))
    assert await screen.ends() == 7


@scenario()
async def pty_kill(stage: Stage) -> None:
    sandbox = await stage.sandbox()
    screen = Screen(stage)
    handle = await screen.open(sandbox)
    assert handle.pid in [one.pid for one in await now(sandbox.commands.list())]
    assert await now(sandbox.pty.kill(handle.pid)) is True
    assert await screen.ends() != 0

    async def gone() -> bool:
        return await now(sandbox.pty.kill(handle.pid)) is False

    await stage.until(gone)


@scenario()
async def pty_connect(stage: Stage) -> None:
    sandbox = await stage.sandbox()
    if not hasattr(sandbox.pty, "connect"):
        return
    handle = await Screen(stage).open(sandbox)
    await now(handle.disconnect())
    seen: list[bytes] = []
    call = {"on_data": seen.append} if stage.asynchronous else {}
    again = await now(sandbox.pty.connect(handle.pid, **call))
    await now(sandbox.pty.send_stdin(handle.pid, b"echo $((6 * 7)); exit\n"))
    await now(again.wait(**({} if stage.asynchronous else {"on_pty": seen.append})))
    assert b"42" in b"".join(map(bytes, seen)), seen


@scenario()
async def pty_stream_input(stage: Stage) -> None:
    sandbox = await stage.sandbox()
    if not hasattr(sandbox.pty, "stream_input"):
        return
    screen = Screen(stage)
    handle = await screen.open(sandbox)
    if stage.asynchronous:
        stream = sandbox.pty.stream_input(handle.pid)
        await stream.send("echo $((6 * 7))\n")
        await stream.send("exit 3\n")
        await stream.close()
    else:
        sandbox.pty.stream_input(handle.pid, iter(["echo $((6 * 7))\n", "exit 3\n"]))
    await screen.shows("42")
    assert await screen.ends() == 3
