"""Templates: which there are, and those that are built through the SDK."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import e2b
from scenario import Stage, now, scenario, unique

IMAGES = ("", "debian_", "ubuntu_", "fedora_", "alpine_", "arch_", "python_", "node_", "bun_")


def files(directory: Path) -> None:
    """What templates copy."""
    (directory / "greeting.txt").write_text("hello from the outside\n")
    (directory / "app/sub").mkdir(parents=True)
    (directory / "app/main.py").write_text("print('main')\n")
    (directory / "app/sub/data.txt").write_text("data\n")


def described(stage: Stage, directory: str, name: str) -> Any:
    """A template with one of each step, of which the first was never built before: only then it says something."""
    return (
        stage.of("Template")(file_context_path=directory)
        .from_base_image()
        .run_cmd(f"echo built by $(id -un) in $(pwd) | tee built.txt # {name}")
        .run_cmd(["id -un > /opt/root", "echo $HOME >> /opt/root"], user="root")
        .copy("greeting.txt", "greeting.txt")
        .copy("app", "/opt/app", mode=0o755)
        .copy("*.txt", "/opt/texts/")
        .copy_items([{"src": "greeting.txt", "dest": "/opt/", "user": "root"}])
        .make_dir("/home/user/made/deep")
        .make_symlink("/home/user/built.txt", "/home/user/link")
        .rename("/home/user/made/deep", "/home/user/made/moved")
        .remove("/opt/app/main.py", user="root")
        .set_user("root")
        .run_cmd("id -un > /opt/again")
        .set_user("user")
        .set_envs({"COLOUR": "green"})
        .set_workdir("/srv/fresh")
        .run_cmd("touch mine")
        .set_workdir("/home/user/made")
        .set_start_cmd("python3 -m http.server 8000", e2b.wait_for_port(8000))
    )


@scenario()
async def templates_that_are_there(stage: Stage) -> None:
    template = stage.of("Template")
    for method in ("exists", "alias_exists"):
        if hasattr(template, method):
            assert await now(getattr(template, method)("base")) is True
            assert await now(getattr(template, method)(f"none-{unique()[:8]}")) is False


@scenario()
async def templates_build_and_run(stage: Stage) -> None:
    name, said = f"compat-{unique()[:8]}", []
    template = stage.of("Template")
    with tempfile.TemporaryDirectory() as directory:
        files(Path(directory))
        built = await now(
            template.build(described(stage, directory, name), alias=name, on_build_logs=lambda one: said.append(one.message))
        )
    assert built.template_id == name and built.build_id, built
    assert any("built by user in /home/user" in one for one in said), said
    assert await now(template.alias_exists(name)) is True
    sandbox = await stage.sandbox(name)

    async def seen(command: str) -> list[str]:
        return (await now(sandbox.commands.run(command))).stdout.splitlines()

    assert await seen("pwd; echo $COLOUR; id -un") == ["/home/user/made", "green", "user"]
    assert await seen("cat ~/greeting.txt ~/link") == ["hello from the outside", "built by user in /home/user"]
    assert await seen("cat /opt/root /opt/again") == ["root", "/root", "root"]
    assert await seen("stat -c %U /srv/fresh /srv/fresh/mine") == ["user", "user"]
    assert await seen("cd /opt; ls app texts; cat app/sub/data.txt") == [
        *("app:", "sub", "", "texts:", "greeting.txt", "data"),
    ]
    assert await seen("stat -c '%U %a' ~/greeting.txt /opt/app/sub/data.txt /opt/greeting.txt") == [
        *("user 644", "user 755", "root 644")
    ]
    look = "python3 -c \"import urllib.request as r; print(r.urlopen('http://127.0.0.1:8000').status)\""
    assert await seen(look) == ["200"]


@scenario()
async def templates_build_in_the_background(stage: Stage) -> None:
    template, name = stage.of("Template"), f"compat-{unique()[:8]}"
    plain = template().from_template("base").run_cmd(f"echo background # {name}").set_ready_cmd("true")
    begun = await now(template.build_in_background(plain, alias=name, cpu_count=1, memory_mb=512))

    async def ready() -> bool:
        status = await now(template.get_build_status(begun, logs_offset=0))
        assert status.status.value in ("waiting", "building", "ready"), status
        return status.status.value == "ready"

    await stage.until(ready, 90)
    status = await now(template.get_build_status(begun, logs_offset=0))
    assert any(one.message == "background" for one in status.log_entries), status
    sandbox = await stage.sandbox(name)
    info = await now(sandbox.get_info())
    assert (info.cpu_count, info.memory_mb, info.template_id) == (1, 512, name), info


@scenario()
async def templates_from_a_dockerfile_and_on_another(stage: Stage) -> None:
    template, first, second = stage.of("Template"), f"compat-{unique()[:8]}", f"compat-{unique()[:8]}"
    text = "FROM e2bdev/base\nRUN echo one > /opt/one\nENV FORM=ro\nENV SHAPE=${FORM}und\nWORKDIR /opt\n"
    await now(template.build(template().from_dockerfile(text), alias=first))
    on_it = template().from_template(first).run_cmd("cat one | tee ~/two")
    await now(template.build(on_it.skip_cache(), alias=second))
    sandbox = await stage.sandbox(second)
    seen = await now(sandbox.commands.run("cat ~/two; echo $SHAPE; pwd"))
    assert seen.stdout == "one\nround\n/opt\n", seen


@scenario()
async def templates_install_packages(stage: Stage) -> None:
    template, name = stage.of("Template"), f"compat-{unique()[:8]}"
    tools = template().from_base_image().pip_install("six==1.17.0").apt_install("tree", no_install_recommends=True)
    await now(template.build(tools, alias=name))
    sandbox = await stage.sandbox(name)
    seen = await now(sandbox.commands.run("python3 -c 'import six; print(six.__version__)'; tree --version | cut -c1-4"))
    assert seen.stdout == "1.17.0\ntree\n", seen


@scenario()
async def templates_that_fail_say_where(stage: Stage) -> None:
    template, name = stage.of("Template"), f"compat-{unique()[:8]}"

    async def fails(described: Any, *texts: str, error: type[Exception] = e2b.BuildException) -> None:
        with stage.raises(error) as caught:
            await now(template.build(described, alias=name))
        assert all(text in caught.text for text in texts), caught.text

    begun = template().from_base_image()
    await fails(begun.run_cmd("echo fine").run_cmd("echo before; exit 3"), "step 2 of 2", "before", "status 3")
    await fails(template().from_base_image().npm_install("left-pad"), "npm: command not found")
    stage.differs("TemplateBuilder.npm_install", "`base` does not contain npm: start from a template or an image that does")
    stage.differs("TemplateBuilder.bun_install", "`base` does not contain bun: start from a template or an image that does")
    await fails(template().from_base_image().git_clone("https://example.invalid/a.git"), "step 1 of 1")
    stage.differs("TemplateBuilder.git_clone", "a build can reach package registries, and other hosts only if its project may be open")
    await fails(template().from_base_image().set_user("postgres").run_cmd("id"), "step 1", "postgres")
    await fails(template().from_template("never-built"), "never-built")
    await fails(template().from_image("127.0.0.1:9/none:1"), "cannot pull")
    for kind in IMAGES:
        stage.differs(f"Template.from_{kind}image", "the image is pulled from its public registry, and must contain bash")
    await fails(template().from_image("a/b:1", username="u", password="p"), "password")
    for registry in ("aws", "gcp"):
        stage.not_offered(f"Template.from_{registry}_registry", "images that need a password are refused: use `bellglass template import`")
    assert await now(template.alias_exists(name)) is False


@scenario()
async def templates_have_no_tags(stage: Stage) -> None:
    template = stage.of("Template")
    with stage.raises(e2b.BuildException) as caught:
        await now(template.build(template().from_base_image(), alias=f"compat-{unique()[:8]}:v1"))
    assert "tags" in caught.text, caught.text
    for method, args in {"assign_tags": ("a:b", ["c"]), "remove_tags": ("a", ["b"]), "get_tags": ("a",)}.items():
        if hasattr(template, method):
            with stage.raises(e2b.TemplateException) as caught:
                await now(getattr(template, method)(*args))
            assert "a separate name" in caught.text, caught.text
    stage.not_offered("Template.*tags", "templates have no tags: give each template its own name")
    stage.not_offered("TemplateBuilder.*dev_container*", "the template that this method requires does not exist")
    stage.not_offered("TemplateBuilder.add_mcp_server", "the template that this method requires does not exist")
