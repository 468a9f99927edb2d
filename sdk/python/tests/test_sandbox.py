"""Tests of the sandbox lifecycle: create, find, inspect, connect to ports, stop."""

from __future__ import annotations

import time

import httpx
import pytest
from conftest import SMALL, Way

import bellglass


async def test_a_sandbox_is_made_as_wanted_and_found_by_its_name(way: Way) -> None:
    name = f"desk{time.time_ns()}"
    async with way.sandbox(name=name, idle=60, labels={"a": "b"}) as sandbox:
        found = await way.do(way.Sandbox.connect(name, client=way.client))
        info = await way.do(found.info())
        assert (found.id, found.name, info.idle_ms, info.labels) == (sandbox.id, name, 60_000, {"a": "b"})
        assert info.limits["memory_bytes"] == SMALL.get("memory_bytes")
        assert (await way.do(found.set_idle(90))).idle_ms == 90_000
        assert (await way.do(found.renew())).idle_ms == 90_000
        # A pre-warmed sandbox that has run nothing uses no memory.
        await way.do(sandbox.commands.start(["sleep", "60"]))
        assert (await way.do(found.usage())).memory_bytes > 0
        assert sandbox.id in [one.id for one in await way.do(way.client.sandboxes())]


async def test_a_context_manager_stops_it(way: Way) -> None:
    made = await way.do(way.Sandbox.create(client=way.client, limits=SMALL))
    if way.blocking:
        with made:
            pass
    else:
        async with made:
            pass
    info = await way.do(made.info())
    assert (info.state, info.reason) == ("ended", "stopped")
    assert (await way.do(made.stop())).state == "ended"


async def test_a_pause_keeps_what_is_in_memory(way: Way) -> None:
    count = "n=0; while true; do n=$((n+1)); echo $n > new; mv new count; sleep 0.05; done"
    async with way.sandbox(idle=60, on_timeout="pause") as sandbox:
        assert (await way.do(sandbox.info())).on_timeout == "pause"
        started = await way.do(sandbox.commands.start(["sh", "-c", count]))
        await way.do(sandbox.commands.run("until [ -s count ]; do sleep 0.05; done"))
        before = int((await way.do(sandbox.commands.run("cat count"))).stdout)
        assert (await way.do(sandbox.pause())).state == "paused"
        assert (await way.do(sandbox.pause())).state == "paused"
        assert (await way.do(sandbox.resume())).state == "running"
        await way.do(sandbox.pause())
        # A request that uses it resumes it.
        assert int((await way.do(sandbox.commands.run("cat count"))).stdout) >= before
        assert (await way.do(sandbox.info())).state == "running"
        await way.do(started.kill())


async def test_files_as_root_are_refused_where_there_is_no_root(way: Way) -> None:
    async with way.sandbox() as sandbox:
        with pytest.raises(bellglass.InvalidRequest, match="uid 0"):
            await way.do(sandbox.files.as_root().write("/etc/own", "x"))
        assert await way.do(sandbox.files.exists("/etc/own")) is False


async def test_a_mistake_is_refused_before_anything_is_made(way: Way) -> None:
    with pytest.raises(bellglass.InvalidRequest):
        await way.do(way.Sandbox.create(client=way.client, limits={"memory_bytes": 1 << 60}))
    with pytest.raises(bellglass.NotFound):
        await way.do(way.Sandbox.create("nothing-like-it", client=way.client))


async def test_a_port_has_an_address_and_a_token(way: Way) -> None:
    async with way.sandbox() as sandbox:
        await way.do(sandbox.files.write("index.html", "hello from inside"))
        await way.do(sandbox.commands.start(["python3", "-m", "http.server", "8000"]))
        port = await way.do(sandbox.port(8000))
        host = port.url.removeprefix("http://")
        until = time.monotonic() + 20
        while True:
            answer = httpx.get(f"{way.server.url}/index.html", headers={**port.headers, "host": host})
            if answer.status_code == 200 or time.monotonic() > until:
                break
            time.sleep(0.1)
        assert answer.text == "hello from inside"
        assert httpx.get(way.server.url, headers={"host": host}).status_code == 401
        assert (await way.do(sandbox.set_port(8000, public=True))).public


async def test_datasets_are_there_before_anything_runs(way: Way) -> None:
    await way.do(way.client.datasets.put("colours.csv", "red,3\n"))
    async with way.sandbox(datasets={"data/c.csv": "colours.csv"}) as sandbox:
        assert await way.do(sandbox.files.read("data/c.csv")) == "red,3\n"
    assert "colours.csv" in [one["name"] for one in await way.do(way.client.datasets.list())]
    await way.do(way.client.datasets.remove("colours.csv"))


async def test_an_address_or_a_key_that_is_none_is_refused_before_anything_is_sent(way: Way) -> None:
    kind = type(way.client)
    for url, key in (("ftp://a", "k"), ("localhost:1", "k"), ("http://a?x=1", "k"), (way.server.url, "new\nline")):
        with pytest.raises(bellglass.InvalidRequest):
            kind(url, key)


async def test_a_server_that_is_not_there_is_said_to_be(way: Way) -> None:
    client = type(way.client)("http://127.0.0.1:1", "k", patience=bellglass.Patience(connection=0.1))
    with pytest.raises(bellglass.ConnectionFailed) as caught:
        await way.do(client.health())
    assert (caught.value.ran, caught.value.retryable) == ("no", True)
