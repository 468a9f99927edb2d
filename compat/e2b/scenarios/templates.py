"""Templates: which there are, and those that are built through the SDK, which is off until the server builds them: name it to play it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import e2b
from scenario import Stage, now, scenario, unique


def described(stage: Stage, directory: Path) -> Any:
    """A template with one of each step. Files to copy stand in a directory that is named when it begins."""
    (directory / "greeting.txt").write_text("hello from the outside\n")
    return (
        stage.of("Template")(file_context_path=str(directory))
        .from_python_image("3")
        .run_cmd("echo built > /home/user/built.txt")
        .copy("greeting.txt", "/home/user/greeting.txt")
        .set_envs({"COLOUR": "green"})
        .set_start_cmd("python3 -m http.server 8000", e2b.wait_for_port(8000))
    )


@scenario()
async def templates_that_are_there(stage: Stage) -> None:
    template = stage.of("Template")
    for method in ("exists", "alias_exists"):
        if hasattr(template, method):
            assert await now(getattr(template, method)("base")) is True
            assert await now(getattr(template, method)(f"none-{unique()[:8]}")) is False


@scenario(off=True)
async def templates_build_and_run(stage: Stage) -> None:
    name, said = f"compat-{unique()[:8]}", []
    template = stage.of("Template")
    with tempfile.TemporaryDirectory() as directory:
        built = await now(template.build(described(stage, Path(directory)), alias=name, on_build_logs=lambda one: said.append(one.message)))
    assert built.template_id and built.build_id, built
    assert any("built" in one for one in said), said
    if hasattr(template, "exists"):
        assert await now(template.exists(name)) is True
    assert await now(template.alias_exists(name)) is True
    sandbox = await stage.sandbox(name)
    seen = await now(sandbox.commands.run("cat built.txt greeting.txt; echo $COLOUR"))
    assert seen.stdout == "built\nhello from the outside\ngreen\n", seen
    look = "python3 -c \"import urllib.request as r; print(r.urlopen('http://127.0.0.1:8000').status)\""
    assert (await now(sandbox.commands.run(look))).stdout == "200\n"


@scenario(off=True)
async def templates_that_fail_say_where(stage: Stage) -> None:
    template = stage.of("Template")
    wrong = template().from_python_image("3").run_cmd("echo before; exit 3")
    with stage.raises(e2b.BuildException) as caught:
        await now(template.build(wrong, alias=f"compat-{unique()[:8]}"))
    assert "exit 3" in caught.text or "3" in caught.text, caught.text
    assert await now(template.alias_exists("compat-never-built")) is False
