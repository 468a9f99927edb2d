"""Environments of others' packages, each of its own: made once below `BELLGLASS_TEST_DATA`, and kept.

What a test process itself imports is in `requirements.txt`. These are for programs that run beside it, several releases of one
package among them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

KEPT = Path(os.environ.get("BELLGLASS_TEST_DATA", "/var/tmp/bellglass-test"))
INSTALLS_WITHIN = 900
"""The largest brings some hundred megabytes from a registry that may be slow."""


def python(name: str, *packages: str) -> Path:
    """The interpreter of an environment with exactly these packages, and what they need."""
    home = KEPT / name
    program = home / "bin" / "python"
    if not _is_made(home, packages):
        run(sys.executable, "-m", "venv", home)
        run(program, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages)
        _made(home, packages)
    return program


def javascript(name: str, *packages: str) -> Path:
    """A directory whose `node_modules` has exactly these packages, and what they need."""
    home = KEPT / name
    if not _is_made(home, packages):
        home.mkdir(parents=True)
        # Otherwise npm takes the next directory above that has one for the place to install to.
        (home / "package.json").write_text('{"private": true}\n')
        run(beside("npm"), "install", "--no-audit", "--no-fund", "--save-exact", "--prefix", home, *packages)
        _made(home, packages)
    return home


def beside(program: str) -> str:
    """Node and npm come with `requirements.txt`, as that of Debian is too old; the path may not name them."""
    own = Path(sys.executable).parent / program
    found = str(own) if own.exists() else shutil.which(program)
    assert found, f"{program} is missing: install compat/requirements.txt"
    return found


def environment(**more: str) -> dict[str, str]:
    """The variables of a program that is to see nothing of the test around it."""
    home = Path(sys.executable).parent
    known = {name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR") if name in os.environ}
    path = f"{home}:{os.environ.get('PATH', os.defpath)}"
    return {**known, "PATH": path, "NO_PROXY": "127.0.0.1,localhost", "PYTHONDONTWRITEBYTECODE": "1", **more}


def _is_made(home: Path, packages: tuple[str, ...]) -> bool:
    """Whether it is there as it is wanted; one that is not, or was cut short, is removed."""
    note = home / "wanted"
    if note.exists() and note.read_text() == "\n".join(packages):
        return True
    shutil.rmtree(home, ignore_errors=True)
    return False


def _made(home: Path, packages: tuple[str, ...]) -> None:
    (home / "wanted").write_text("\n".join(packages))


def run(*words: str | Path, at: Path | None = None, env: dict[str, str] | None = None, code: int = 0) -> str:
    """Runs a program, checks its exit code, and returns its output. By default it gets the variables of this process."""
    # npm is a program for `node`, which stands beside it.
    path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"
    done = subprocess.run(
        [str(word) for word in words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=INSTALLS_WITHIN,
        cwd=at,
        env=env or {**os.environ, "PATH": path},
        check=False,
    )
    assert done.returncode == code, f"{' '.join(map(str, words))}\n{done.stdout}"
    return done.stdout
