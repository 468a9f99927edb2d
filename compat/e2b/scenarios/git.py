"""The SDK's commands of git, on a repository that lives inside: they need git there, and no network."""

from __future__ import annotations

from scenario import Stage, now, scenario


@scenario()
async def git_commits_and_branches(stage: Stage) -> None:
    sandbox = await stage.sandbox()
    git = sandbox.git
    await now(git.configure_user("Ann", "ann@example.com"))
    await now(git.set_config("init.defaultBranch", "main"))
    assert await now(git.get_config("user.name")) == "Ann"
    await now(git.init("/home/user/r", initial_branch="main"))
    await now(sandbox.files.write("r/a", "one\n"))
    status = await now(git.status("/home/user/r"))
    assert [one.name for one in status.file_status] == ["a"], status
    await now(git.add("/home/user/r"))
    await now(git.commit("/home/user/r", "the first"))
    await now(git.create_branch("/home/user/r", "side"))
    await now(git.checkout_branch("/home/user/r", "main"))
    branches = await now(git.branches("/home/user/r"))
    assert (sorted(branches.branches), branches.current_branch) == (["main", "side"], "main"), branches
    await now(git.delete_branch("/home/user/r", "side", force=True))
    await now(sandbox.files.write("r/a", "two\n"))
    await now(git.restore("/home/user/r", ["a"], worktree=True))
    assert await now(sandbox.files.read("r/a")) == "one\n"
    await now(sandbox.files.write("r/a", "three\n"))
    await now(git.reset("/home/user/r", mode="hard"))
    assert await now(sandbox.files.read("r/a")) == "one\n"


@scenario()
async def git_talks_to_a_remote(stage: Stage) -> None:
    sandbox = await stage.sandbox()
    git = sandbox.git
    await now(git.configure_user("Ann", "ann@example.com"))
    await now(git.init("/home/user/far", bare=True, initial_branch="main"))
    await now(git.init("/home/user/near", initial_branch="main"))
    await now(git.remote_add("/home/user/near", "origin", "/home/user/far"))
    assert await now(git.remote_get("/home/user/near", "origin")) == "/home/user/far"
    await now(sandbox.files.write("near/a", "one\n"))
    await now(git.add("/home/user/near"))
    await now(git.commit("/home/user/near", "the first"))
    await now(git.push("/home/user/near", remote="origin", branch="main"))
    await now(git.clone("/home/user/far", path="/home/user/copy"))
    assert await now(sandbox.files.read("copy/a")) == "one\n"
    await now(git.pull("/home/user/copy"))
    await now(git.dangerously_authenticate("ann", "no-secret", host="git.example.com"))
