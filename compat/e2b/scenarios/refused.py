"""What is not offered: the server says so, and the SDK raises something that can be read."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import e2b
from scenario import Stage, now, scenario

#: An error of the SDK's own; Volumes and secrets have kinds of theirs that are no `SandboxException`.
KINDS = tuple(
    getattr(e2b, name) for name in ("SandboxException", "VolumeException", "SecretException", "BuildException") if hasattr(e2b, name)
)


async def refused(stage: Stage, method: str, why: str, call: Callable[[], Any], *, of_one: bool = False) -> None:
    """A call ends with an error that names what is not there. One that names a thing may also say that this thing is not there."""
    if of_one:
        with contextlib.suppress(e2b.NotFoundException, *KINDS):
            assert await now(call()) is False, f"{method} found what nobody has made"
    else:
        with stage.raises(*KINDS) as caught:
            await now(call())
        said = caught.text.lower()
        assert any(text in said for text in ("not offered", "not supported", "has no")), f"{method}: {caught.text}"
    stage.not_offered(method, why)


@scenario()
async def refused_snapshots(stage: Stage) -> None:
    sandbox = await stage.sandbox()
    why = "a sandbox can be paused, but not copied"
    await refused(stage, "Sandbox.create_snapshot", why, lambda: sandbox.create_snapshot())
    await refused(stage, "Sandbox.list_snapshots", why, lambda: stage.Sandbox.list_snapshots().next_items())
    await refused(stage, "Sandbox.delete_snapshot", why, lambda: stage.Sandbox.delete_snapshot("snapshot"), of_one=True)
    if hasattr(sandbox, "fork"):
        await refused(stage, "Sandbox.fork", why, lambda: sandbox.fork())
    assert await now(sandbox.is_running())


@scenario()
async def refused_volumes(stage: Stage) -> None:
    if not stage.has("Volume"):
        return
    volume = stage.of("Volume")
    why = "there are no volumes: copy files in and out instead"
    await refused(stage, "Volume.create", why, lambda: volume.create("things"))
    await refused(stage, "Volume.list", why, lambda: volume.list())
    for method in ("connect", "get_info", "destroy"):
        await refused(stage, f"Volume.{method}", why, lambda method=method: getattr(volume, method)("things"), of_one=True)
    # The rest are methods of a volume, which nobody can have.
    stage.not_offered("Volume.*", why)


@scenario()
async def refused_secrets(stage: Stage) -> None:
    if not hasattr(getattr(e2b, "Secret", None), "list"):
        return
    secret = stage.of("Secret")
    why = "use Bellglass's own API for secrets instead"
    await refused(stage, "Secret.create", why, lambda: secret.create("name", "value"))
    await refused(stage, "Secret.list", why, lambda: secret.list().next_items())
    for method, more in (("get_info", ()), ("exists", ()), ("update", ("value",)), ("destroy", ())):
        call = getattr(secret, method)
        await refused(stage, f"Secret.{method}", why, lambda call=call, more=more: call("name", *more), of_one=True)


@scenario()
async def refused_options_of_create(stage: Stage) -> None:
    for options, named in (
        ({"mcp": {"time": {}}}, "mcp"),
        ({"volume_mounts": {"/mnt/things": "things"}}, "volume"),
    ):
        with stage.raises(*KINDS) as caught:
            stage.keep(await now(stage.Sandbox.create(**options)))
        assert named in caught.text.lower(), f"{options}: {caught.text}"
    stage.differs("Sandbox.create", "`mcp`, `volume_mounts` and `iam` are refused")
    for method in ("Sandbox.get_mcp_url", "Sandbox.get_mcp_token"):
        stage.not_offered(method, "use the server's own MCP endpoint, `/mcp`")
