"""Tests with many threads, forked children, event loops and sandboxes: connections are neither shared nor leaked."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import pickle
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import SMALL, Server

import bellglass


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_child_after_fork_uses_connections_of_its_own(server: Server) -> None:
    client = bellglass.Client(server.url, server.key)
    with bellglass.Sandbox.create(client=client, limits=SMALL) as sandbox:
        sandbox.commands.run("true")
        children = []
        for number in range(4):
            child = os.fork()
            if child == 0:
                right = [sandbox.commands.run(f"echo {number}").stdout == f"{number}\n" for _ in range(5)]
                os._exit(0 if all(right) else 1)
            children.append(child)
        mine = [sandbox.commands.run("echo mine").stdout for _ in range(10)]
        assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * 4
        assert mine == ["mine\n"] * 10


def test_an_event_loop_in_a_child_after_fork_works(server: Server) -> None:
    client = bellglass.AsyncClient(server.url, server.key)

    async def look() -> int:
        return len(await client.sandboxes(ended=True))

    before = asyncio.run(look())
    queue = multiprocessing.get_context("fork").Queue()
    child = multiprocessing.get_context("fork").Process(target=lambda: queue.put(asyncio.run(look())))
    child.start()
    assert queue.get(timeout=30) >= before
    child.join()
    assert asyncio.run(look()) >= before


def test_many_threads_share_one_client(server: Server) -> None:
    client = bellglass.Client(server.url, server.key)
    with bellglass.Sandbox.create(client=client, limits=SMALL) as sandbox:
        with ThreadPoolExecutor(32) as threads:
            said = list(threads.map(lambda number: sandbox.commands.run(f"echo {number}").stdout, range(200)))
        assert said == [f"{number}\n" for number in range(200)]


def test_streams_in_any_number_never_keep_a_short_request_from_being_sent(server: Server) -> None:
    client = bellglass.Client(server.url, server.key, streams_max=4)
    with bellglass.Sandbox.create(client=client, limits=SMALL) as sandbox:
        started = [sandbox.commands.start("echo here; sleep 60") for _ in range(4)]
        readers = [one.chunks() for one in started]
        assert [next(reader).data for reader in readers] == [b"here\n"] * 4
        assert sandbox.files.exists("/workspace")
        for one in started:
            one.kill()
        assert [list(reader) for reader in readers] == [[]] * 4


def test_twenty_sandboxes_on_one_event_loop_leave_no_descriptor_open(server: Server) -> None:
    asyncio.run(_many(server, 20, at_once=20))


@pytest.mark.thousand
@pytest.mark.timeout(3600)
def test_a_thousand_sandboxes_on_one_event_loop_keep_descriptors_flat(server: Server) -> None:
    # Each gets 64 MiB of disk; with less than 70 GiB free, the machine reports how many sandboxes fit.
    asyncio.run(_many(server, int(os.environ.get("BELLGLASS_TEST_MANY", "1000")), at_once=50))


async def _many(server: Server, count: int, at_once: int) -> None:
    limits: bellglass.Limits = {**SMALL, "memory_bytes": 32 << 20, "tmp_bytes": 4 << 20, "pids": 16}
    before, most = descriptors(), 0
    async with bellglass.AsyncClient(server.url, server.key, streams_max=64) as client:
        places = asyncio.Semaphore(at_once)

        async def made() -> bellglass.AsyncSandbox:
            async with places:
                return await bellglass.AsyncSandbox.create(client=client, limits=limits, idle=3600)

        sandboxes = await asyncio.gather(*(made() for _ in range(count)))
        runs = asyncio.gather(*(one.commands.run(["echo", one.id], timeout=600) for one in sandboxes))
        while not runs.done():
            most = max(most, descriptors() - before)
            await asyncio.sleep(0.02)
        assert [run.stdout.strip() for run in await runs] == [one.id for one in sandboxes]
        assert most <= 64 + 64 + 8
        await asyncio.gather(*(one.stop() for one in sandboxes))
    await asyncio.sleep(0.1)
    assert descriptors() - before <= 2


def test_a_cancelled_task_ends_its_run(server: Server) -> None:
    async def case() -> str:
        client = bellglass.AsyncClient(server.url, server.key)
        async with await bellglass.AsyncSandbox.create(client=client, limits=SMALL) as sandbox:
            begun = asyncio.Event()
            running = asyncio.create_task(
                sandbox.commands.run("echo on; sleep 600", on_stdout=lambda _: begun.set(), timeout=None)
            )
            await asyncio.wait_for(begun.wait(), 20)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            (only,) = await sandbox.commands.list()
            return (await (await sandbox.commands.connect(only.id)).wait()).outcome.kind

    assert asyncio.run(case()) == "cancelled"


def test_an_event_loop_goes_on_while_a_command_runs(server: Server) -> None:
    async def case() -> tuple[float, float]:
        client = bellglass.AsyncClient(server.url, server.key)
        async with await bellglass.AsyncSandbox.create(client=client, limits=SMALL) as sandbox:
            began = time.monotonic()
            running = asyncio.create_task(sandbox.commands.run("sleep 1"))
            longest = last = 0.0
            while not running.done():
                last = time.monotonic()
                await asyncio.sleep(0.01)
                longest = max(longest, time.monotonic() - last)
            return longest, time.monotonic() - began

    longest, whole = asyncio.run(case())
    assert longest < 0.5 and whole > 1


def test_an_error_crosses_processes_whole() -> None:
    error = bellglass.NotFound("there is none", code="not_found", hint="Look again.", ran="no")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.code, again.ran) == (bellglass.NotFound, str(error), "not_found", "no")
