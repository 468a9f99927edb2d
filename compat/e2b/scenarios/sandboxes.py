"""Sandboxes: made, found, counted, ended."""

from __future__ import annotations

import datetime
from typing import Any

import e2b
from scenario import Stage, now, scenario, unique

#: What a filter has to carry unharmed: it is encoded three times on its way.
ODD = {"who": "Ann & Ben", "größe": "a b/c=d%20"}


def state(info: Any) -> str:
    """Releases differ in whether it is a text."""
    return str(getattr(info.state, "value", info.state))


@scenario()
async def create_uses_the_default_template(stage: Stage) -> None:
    sandbox = stage.keep(await now(stage.Sandbox.create()))
    info = await now(sandbox.get_info())
    if "base" not in (info.name, info.template_id):
        assert info.name == info.template_id == "workstation", info
        stage.differs("Sandbox.get_info", "templates are shown under their name on this server: `base` is shown as `workstation`")
    seen = await now(sandbox.commands.run("whoami; pwd; echo $HOME"))
    assert seen.stdout.split() == ["user", "/home/user", "/home/user"], seen


@scenario()
async def create_takes_metadata_envs_and_timeout(stage: Stage) -> None:
    sandbox = await stage.sandbox("base", metadata=ODD, envs={"COLOUR": "green  blue"}, timeout=120)
    info = await now(sandbox.get_info())
    assert info.metadata == ODD, info
    left = (info.end_at - datetime.datetime.now(datetime.timezone.utc)).total_seconds()
    assert 60 < left < 125, info
    seen = await now(sandbox.commands.run('echo "$COLOUR" $E2B_SANDBOX'))
    assert seen.stdout == "green  blue true\n", seen


@scenario()
async def create_ends_with_its_block(stage: Stage) -> None:
    if stage.asynchronous:
        async with await stage.Sandbox.create() as sandbox:
            assert await sandbox.is_running()
    else:
        with stage.Sandbox.create() as sandbox:
            assert sandbox.is_running()
    assert not await now(sandbox.is_running())


async def refused(sandbox: Any, host: str) -> bool:
    """Whether the policy of a sandbox refuses a host. Where it is allowed and there is no network, the answer is another error."""
    program = f"import urllib.request; urllib.request.urlopen('https://{host}', timeout=20)"
    try:
        await now(sandbox.commands.run(f'python3 -c "{program}"'))
    except e2b.CommandExitException as error:
        return "Forbidden by the policy" in error.stderr
    return False


@scenario()
async def create_without_internet_has_none(stage: Stage) -> None:
    sandbox = await stage.sandbox(allow_internet_access=False)
    # The control is in `network_can_be_changed`: a host that is allowed is not refused.
    assert await refused(sandbox, "example.com")


@scenario()
async def network_is_restored_by_an_empty_change(stage: Stage) -> None:
    sandbox = await stage.sandbox()
    if not hasattr(sandbox, "update_network"):
        return

    async def internet() -> Any:
        return getattr(await now(sandbox.get_info()), "allow_internet_access", None)

    before = await internet()
    await now(sandbox.update_network({"deny_out": ["0.0.0.0/0"]}))
    await now(sandbox.update_network({}))
    assert await internet() == before, before


@scenario()
async def network_can_be_changed(stage: Stage) -> None:
    sandbox = await stage.sandbox()
    if not hasattr(sandbox, "update_network"):
        return
    await now(sandbox.update_network({"allow_out": ["example.com"], "deny_out": ["0.0.0.0/0"]}))
    assert await refused(sandbox, "example.org")
    assert not await refused(sandbox, "example.com")


@scenario()
async def create_refuses_a_template_that_is_not_there(stage: Stage) -> None:
    with stage.raises(e2b.SandboxException) as caught:
        stage.keep(await now(stage.Sandbox.create("no-such-template")))
    assert "no-such-template" in caught.text, caught.text


@scenario()
async def create_refuses_a_wrong_key(stage: Stage) -> None:
    with stage.raises(e2b.AuthenticationException):
        stage.keep(await now(stage.Sandbox.create(api_key="e2b_" + "0" * 64)))


@scenario()
async def connect_finds_a_sandbox_again(stage: Stage) -> None:
    sandbox = await stage.sandbox()
    await now(sandbox.files.write("note", "from the first"))
    other = await now(stage.Sandbox.connect(sandbox.sandbox_id))
    assert other.sandbox_id == sandbox.sandbox_id
    assert await now(other.files.read("note")) == "from the first"
    again = await now(other.connect())
    assert (await now(again.commands.run("cat note"))).stdout == "from the first"
    with stage.raises(e2b.NotFoundException):
        await now(stage.Sandbox.connect("inosuchsandboxisthere"))


@scenario()
async def connect_only_lengthens_a_timeout(stage: Stage) -> None:
    sandbox = await stage.sandbox(timeout=200)
    before = (await now(sandbox.get_info())).end_at
    await now(stage.Sandbox.connect(sandbox.sandbox_id, timeout=10))
    kept = (await now(sandbox.get_info())).end_at
    assert abs((kept - before).total_seconds()) < 5, (before, kept)
    await now(stage.Sandbox.connect(sandbox.sandbox_id, timeout=400))
    assert ((await now(sandbox.get_info())).end_at - before).total_seconds() > 150


@scenario()
async def kill_is_true_then_false(stage: Stage) -> None:
    sandbox = await stage.sandbox()
    assert await now(sandbox.is_running()) is True
    assert await now(sandbox.kill()) is True
    assert await now(sandbox.is_running()) is False
    assert await now(sandbox.kill()) is False
    assert await now(stage.Sandbox.kill(sandbox.sandbox_id)) is False
    with stage.raises(e2b.NotFoundException):
        await now(stage.Sandbox.get_info(sandbox.sandbox_id))
    with stage.raises(e2b.TimeoutException):
        await now(sandbox.commands.run("true"))
    with stage.raises(e2b.TimeoutException):
        await now(sandbox.files.read("/etc/hostname"))


@scenario()
async def get_info_tells_what_it_is(stage: Stage) -> None:
    sandbox = await stage.sandbox(metadata={"for": "info"})
    info = await now(stage.Sandbox.get_info(sandbox.sandbox_id))
    assert info.sandbox_id == sandbox.sandbox_id
    assert state(info) == "running"
    assert info.metadata == {"for": "info"}
    assert info.started_at < info.end_at
    assert info.cpu_count > 0 and info.memory_mb > 0 and info.envd_version, info


@scenario()
async def set_timeout_lengthens(stage: Stage) -> None:
    sandbox = await stage.sandbox(timeout=60)
    before = (await now(sandbox.get_info())).end_at
    await now(sandbox.set_timeout(600))
    assert ((await now(sandbox.get_info())).end_at - before).total_seconds() > 400


@scenario()
async def set_timeout_that_is_short_ends_it(stage: Stage) -> None:
    sandbox = await stage.sandbox()
    await now(stage.Sandbox.set_timeout(sandbox.sandbox_id, 1))

    async def gone() -> bool:
        return not await now(sandbox.is_running())

    await stage.until(gone)
    with stage.raises(e2b.NotFoundException):
        await now(stage.Sandbox.get_info(sandbox.sandbox_id))
    with stage.raises(e2b.NotFoundException):
        await now(stage.Sandbox.connect(sandbox.sandbox_id))


@scenario()
async def list_filters_by_metadata_and_state(stage: Stage) -> None:
    mark = unique()
    one = await stage.sandbox(metadata={"mark": mark, **ODD})
    await stage.sandbox(metadata={"mark": mark, "who": "Cleo"})

    async def found(metadata: dict[str, str], states: list[str] | None = None) -> list[str]:
        wanted = [e2b.SandboxState(name) for name in states] if states else None
        page = stage.Sandbox.list(query=e2b.SandboxQuery(metadata=metadata, state=wanted))
        return [info.sandbox_id for info in await now(page.next_items())]

    assert len(await found({"mark": mark})) == 2
    assert await found({"mark": mark, **ODD}) == [one.sandbox_id]
    assert await found({"mark": mark, "who": "nobody"}) == []
    assert len(await found({"mark": mark}, ["running"])) == 2
    assert len(await found({"mark": mark}, ["running", "paused"])) == 2
    assert await found({"mark": mark}, ["paused"]) == []


@scenario()
async def list_comes_in_pages(stage: Stage) -> None:
    mark = unique()
    made = [(await stage.sandbox(metadata={"mark": mark})).sandbox_id for _ in range(3)]
    pages = stage.Sandbox.list(query=e2b.SandboxQuery(metadata={"mark": mark}), limit=2)
    assert pages.has_next
    first = await now(pages.next_items())
    assert [len(first), pages.has_next] == [2, True]
    token = pages.next_token
    second = await now(pages.next_items())
    assert [len(second), pages.has_next] == [1, False]
    # The newest comes first.
    assert [info.sandbox_id for info in [*first, *second]] == made[::-1]
    later = stage.Sandbox.list(query=e2b.SandboxQuery(metadata={"mark": mark}), limit=2, next_token=token)
    assert [info.sandbox_id for info in await now(later.next_items())] == made[:1]
    with stage.raises(Exception):
        await now(pages.next_items())


@scenario()
async def get_metrics_measures(stage: Stage) -> None:
    sandbox = await stage.sandbox()
    measured = (await stage.until(lambda: sandbox.get_metrics()))[-1]
    if measured.disk_used == 0:
        stage.differs("Sandbox.get_metrics", "returns one current measurement; disk usage is reported as 0")
    assert measured.cpu_count > 0 and measured.cpu_used_pct >= 0, measured
    assert 0 < measured.mem_used < measured.mem_total, measured
    assert 0 <= measured.disk_used < measured.disk_total, measured
    assert measured.timestamp.tzinfo is not None, measured
    assert await now(stage.Sandbox.get_metrics(sandbox.sandbox_id))
