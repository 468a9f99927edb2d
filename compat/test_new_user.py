"""A new user's path: a wheel, one command, six lines, and a plot is on the disk. Timed.

The one command makes the template. Here its layers are there already, so that what is timed is Bellglass and not Debian's mirrors.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import BINARY, ROOT, TEMPLATES

#: What a user writes.
LINES = """\
from bellglass import Sandbox

with Sandbox.create("interpreter") as sandbox:
    ran = sandbox.run_code("import matplotlib.pyplot as plt; plt.plot([1, 4, 9])")
    ran.figures[0].save("plot.png")
"""
#: A user of nobody else's.
USER = 12345
#: From the beginning of `pip install` to the plot.
PROMISED_SECONDS = 60


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel that carries the program."""
    out = tmp_path_factory.mktemp("wheel")
    words = [sys.executable, str(ROOT / "sdk/python/build_wheel.py"), str(BINARY), "--out", str(out)]
    subprocess.run(words, check=True, timeout=120, capture_output=True)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A directory of the user's, which other users can pass."""
    for above in (tmp_path, *tmp_path.parents):
        if above != Path("/") and not above.stat().st_mode & 0o1:
            above.chmod(above.stat().st_mode | 0o11)
    yield tmp_path
    shutil.rmtree(tmp_path / "data", ignore_errors=True)


def test_the_lines_are_six_at_most() -> None:
    assert len([line for line in LINES.splitlines() if line]) <= 6
    readme = (ROOT / "sdk/python/README.md").read_text()
    assert LINES in readme, "the README begins with them"


def test_root_has_a_plot_natively(wheel: Path, home: Path) -> None:
    data = home / "data"
    (data / "layers").mkdir(parents=True)
    for directory in (data, data / "layers"):
        directory.chmod(0o711)
    for layer in (TEMPLATES / "layers").iterdir():
        (data / "layers" / layer.name).symlink_to(layer)
    # What is known of layers: which steps made them.
    for known in ("builds",):
        if (TEMPLATES / known).is_dir():
            shutil.copytree(TEMPLATES / known, data / known)
    environment = {"HOME": str(home), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "BELLGLASS_DATA": str(data)}
    seconds = first_plot(wheel, home, environment, lambda words: words, ["template", "build", "interpreter"])
    notebook(home, environment)
    print(f"\nfirst plot, natively: {seconds}")


def test_a_user_has_a_plot_through_docker(wheel: Path, home: Path) -> None:
    engine = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    socket = Path(engine.removeprefix("unix://"))
    if not socket.exists():
        pytest.skip("no Docker engine is here; `scripts/with-engines` starts one")
    # Whoever made the template has given it away as a file.
    given = home / "interpreter.tar"
    export = [str(BINARY), "--data", str(TEMPLATES), "template", "export", "interpreter", str(given)]
    subprocess.run(export, check=True, timeout=300, capture_output=True)
    for path in (home, given):
        os.chown(path, USER, USER)
    group = socket.stat().st_gid
    assert group != 0, "the socket belongs to a group of users"
    environment = {"HOME": str(home), "PATH": "/usr/bin:/bin", "DOCKER_HOST": engine}

    def as_user(words: list[str]) -> list[str]:
        return ["setpriv", f"--reuid={USER}", f"--regid={USER}", f"--groups={group}", *words]

    command = ["template", "import", "--name", "interpreter", str(given)]
    seconds = first_plot(wheel, home, environment, as_user, command)
    print(f"\nfirst plot, through Docker without root: {seconds}")


def first_plot(
    wheel: Path,
    home: Path,
    environment: dict[str, str],
    dressed: Callable[[list[str]], list[str]],
    command: list[str],
) -> dict[str, float]:
    """Goes the path, and says how long each step took."""
    seconds: dict[str, float] = {}
    wheel = Path(shutil.copy(wheel, home))
    wheel.chmod(0o644)

    def step(name: str, words: list[str]) -> None:
        begun = time.monotonic()
        done = subprocess.run(dressed(words), cwd=home, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        seconds[name] = round(time.monotonic() - begun, 1)

    step("venv", ["/usr/bin/python3", "-m", "venv", "venv"])
    step("pip", ["venv/bin/pip", "install", "--quiet", "--disable-pip-version-check", str(wheel)])
    step("command", ["venv/bin/bellglass", *command])
    (home / "first.py").write_text(LINES)
    step("plot", ["venv/bin/python", "first.py"])
    assert (home / "plot.png").read_bytes().startswith(b"\x89PNG")
    whole = seconds["pip"] + seconds["command"] + seconds["plot"]
    assert whole < PROMISED_SECONDS, seconds
    return seconds


def notebook(home: Path, environment: dict[str, str]) -> None:
    """The same in a notebook, where results show as they would had the code run there."""
    install = ["venv/bin/pip", "install", "--quiet", "--disable-pip-version-check", "nbconvert", "ipykernel"]
    subprocess.run(install, cwd=home, env=environment, check=True, timeout=300)
    cells = [
        "from bellglass import Sandbox\nsandbox = Sandbox.create('interpreter')",
        "sandbox.run_code('import matplotlib.pyplot as plt; plt.plot([1, 4, 9])')",
        "sandbox.run_code('import pandas as pd; pd.DataFrame({\"a\": [1, 2]})')",
        "sandbox.stop()",
    ]
    written = [
        {"cell_type": "code", "source": cell, "metadata": {}, "outputs": [], "execution_count": None, "id": f"c{number}"}
        for number, cell in enumerate(cells)
    ]
    page = {"cells": written, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    (home / "page.ipynb").write_text(json.dumps(page))
    words = ["venv/bin/jupyter", "nbconvert", "--to", "notebook", "--execute", "page.ipynb", "--output", "done.ipynb"]
    environment = {**environment, "PATH": f"{home}/venv/bin:{environment['PATH']}"}
    done = subprocess.run(words, cwd=home, env=environment, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    shown = [cell["outputs"] for cell in json.loads((home / "done.ipynb").read_text())["cells"]]
    assert any("image/png" in output.get("data", {}) for output in shown[1]), shown[1]
    assert any("<table" in "".join(output.get("data", {}).get("text/html", "")) for output in shown[2]), shown[2]
