"""Sandboxes that are paused, by a call or at their timeout, and continue."""

from __future__ import annotations

from typing import Any

import e2b
from scenario import Stage, now, scenario, unique

from .sandboxes import state

COUNT = "n=0; while true; do n=$((n+1)); echo $n > count; sleep 0.1; done"


async def counted(sandbox: Any) -> int:
    """How far the loop inside has come. It may be at its writing just now."""
    return int((await now(sandbox.files.read("count"))).strip() or 0)


@scenario()
async def pause_keeps_a_process_and_its_memory(stage: Stage) -> None:
    mark = unique()
    sandbox = await stage.sandbox(metadata={"mark": mark})
    handle = await now(sandbox.commands.run(COUNT, background=True, timeout=0))
    await stage.until(lambda: sandbox.files.exists("count"))
    assert await now(sandbox.pause()) in (True, None)
    assert state(await now(sandbox.get_info())) == "paused"
    query = e2b.SandboxQuery(metadata={"mark": mark}, state=[e2b.SandboxState("paused")])
    assert [one.sandbox_id for one in await now(stage.Sandbox.list(query=query).next_items())] == [sandbox.sandbox_id]
    assert await now(sandbox.is_running()) is False
    assert await now(stage.Sandbox.pause(sandbox.sandbox_id)) is False
    again = await now(stage.Sandbox.connect(sandbox.sandbox_id, timeout=120))
    assert state(await now(again.get_info())) == "running"
    assert handle.pid in [one.pid for one in await now(again.commands.list())]
    before = await counted(again)

    async def further() -> bool:
        return await counted(again) > before

    # The number is kept in the memory of the shell: a loop that had begun anew would be behind.
    await stage.until(further)
    assert await now(again.commands.kill(handle.pid)) is True


@scenario(code=True)
async def pause_keeps_a_variable(stage: Stage) -> None:
    sandbox = stage.keep(await now(stage.of("Sandbox", stage.code).create(timeout=300)))
    assert (await now(sandbox.run_code("x = 41"))).error is None
    await now(sandbox.beta_pause())
    assert state(await now(sandbox.get_info())) == "paused"
    again = await now(sandbox.connect(timeout=120))
    assert (await now(again.run_code("x + 1"))).text == "42"


@scenario()
async def pause_at_the_timeout(stage: Stage) -> None:
    sandbox = await stage.sandbox(timeout=4, lifecycle={"on_timeout": "pause"})
    handle = await now(sandbox.commands.run(COUNT, background=True, timeout=0))
    await stage.until(lambda: sandbox.files.exists("count"))
    before = await counted(sandbox)

    async def paused() -> bool:
        return state(await now(sandbox.get_info())) == "paused"

    await stage.until(paused)
    # Without `auto_resume` only `connect` resumes it.
    with stage.raises(e2b.TimeoutException, e2b.NotFoundException):
        await now(sandbox.files.read("count"))
    assert await paused()
    again = await now(stage.Sandbox.connect(sandbox.sandbox_id, timeout=120))
    assert handle.pid in [one.pid for one in await now(again.commands.list())]

    async def further() -> bool:
        return await counted(again) > before

    await stage.until(further)


@scenario()
async def auto_resume(stage: Stage) -> None:
    sandbox = await stage.sandbox(timeout=4, lifecycle={"on_timeout": "pause", "auto_resume": True})
    await now(sandbox.files.write("note", "kept"))

    async def paused() -> bool:
        return state(await now(sandbox.get_info())) == "paused"

    await stage.until(paused)
    assert await now(sandbox.files.read("note")) == "kept"
    assert state(await now(sandbox.get_info())) == "running"


@scenario()
async def pause_and_kill(stage: Stage) -> None:
    sandbox = await stage.sandbox()
    await now(sandbox.pause())
    assert await now(sandbox.kill()) is True
    with stage.raises(e2b.NotFoundException):
        await now(stage.Sandbox.connect(sandbox.sandbox_id))
