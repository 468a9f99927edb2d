"""E2B's own SDKs, unmodified, against a real server: several releases, both languages, both kinds of the Python one.

    pytest test_e2b.py -k python-2.63.0-sync
    pytest test_e2b.py -k javascript-2.51.0

One scenario alone: `SCENARIO=commands_foreground pytest test_e2b.py -k python-2.63.0-sync`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import environments
import pytest
from conftest import ROOT, Server

HERE = Path(__file__).parent / "e2b"
PAGE = ROOT / "docs/guides/e2b-methods.md"
LINES = environments.KEPT / "e2b-lines"
"""What the programs said last, for the table. A run that failed leaves nothing."""
RUNS_WITHIN = 1500
"""All scenarios, one after another, on a machine under load."""
AT_ONCE = 3
"""Programs. More would make each of them wait for processors."""
LEAST = 50
"""Number of scenarios that every release has. The oldest JavaScript release has 59."""
ALONE = os.environ.get("SCENARIO", "").split()


@dataclass(frozen=True)
class Release:
    """One of a language's packages, with how it is used."""

    language: str
    e2b: str
    code: str | None
    kind: str

    def __str__(self) -> str:
        return "-".join(part for part in (self.language, self.e2b, self.kind) if part)

    def program(self) -> tuple[list[str], Path]:
        """What runs its scenarios, and where."""
        if self.language == "python":
            packages = [f"e2b=={self.e2b}", *([f"e2b-code-interpreter=={self.code}"] if self.code else [])]
            python = environments.python(f"e2b-py-{self.e2b}", *packages)
            return [str(python), str(HERE / ("sync.py" if self.kind == "sync" else "async_.py"))], HERE
        packages = [f"e2b@{self.e2b}", *([f"@e2b/code-interpreter@{self.code}"] if self.code else [])]
        home = environments.javascript(f"e2b-js-{self.e2b}", *packages)
        return [environments.beside("node"), str(HERE / "js" / "scenarios.mjs")], home


def releases() -> list[Release]:
    versions = tomllib.loads((HERE / "versions.toml").read_text())
    kinds = {"python": ("sync", "async"), "javascript": ("",)}
    newest = os.environ.get("BELLGLASS_E2B") == "newest"
    return [
        Release(language, one["e2b"], one.get("code"), kind)
        for language, each in versions.items()
        for one in (each[:1] if newest else each)
        for kind in kinds[language]
    ]


@pytest.fixture(scope="session")
def runs(request: pytest.FixtureRequest, server: Server) -> Iterator[dict[Release, Future[subprocess.CompletedProcess[str]]]]:
    """The programs of all releases that were asked for, some at once: most of the time they wait."""
    parameters = (getattr(item, "callspec", None) for item in request.session.items)
    wanted = [one.params["release"] for one in parameters if one and "release" in one.params]
    # One after the other: pip and npm share what they have fetched.
    programs = {release: release.program() for release in wanted}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {release: pool.submit(ran, server, *program) for release, program in programs.items()}


def e2b_key(key: str) -> str:
    """The form of a key that E2B's SDKs accept."""
    return "e2b_" + key.removeprefix("bgk_")


def ran(server: Server, words: list[str], directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*words, *ALONE],
        cwd=directory,
        env=environments.environment(
            E2B_API_KEY=e2b_key(server.key),
            E2B_API_URL=server.url,
            E2B_SANDBOX_URL=server.url,
            ROOT_KEY=e2b_key(server.key_of("rooted", root=True)),
        ),
        capture_output=True,
        text=True,
        timeout=RUNS_WITHIN,
        check=False,
    )


@pytest.mark.timeout(RUNS_WITHIN + environments.INSTALLS_WITHIN)
@pytest.mark.parametrize("release", releases(), ids=str)
def test_every_scenario(runs: dict[Release, Future[subprocess.CompletedProcess[str]]], release: Release) -> None:
    kept = LINES / f"{release}.jsonl"
    kept.unlink(missing_ok=True)
    ended = runs[release].result()
    check(ended, 1 if ALONE else LEAST)
    if not ALONE:
        LINES.mkdir(parents=True, exist_ok=True)
        kept.write_text(ended.stdout)


def check(ended: subprocess.CompletedProcess[str], least: int) -> None:
    """That every scenario has ended well, and that there were at least so many."""
    *scenarios, last = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")] or [{}]
    failed = [one for one in scenarios if not one["ok"]]
    assert not failed, told(failed, len(scenarios), ended.stderr)
    assert ended.returncode == 0 and len(scenarios) == last.get("scenarios") >= least, f"{ended.stdout}\n{ended.stderr}"


def told(failed: list[dict[str, Any]], number: int, stderr: str) -> str:
    """Each failed scenario with all that is known of it."""
    each = [f"--- {one['scenario']} ({one['seconds']} s)\n{one['error']}" for one in failed]
    return "\n".join([f"{len(failed)} of {number} scenarios failed", *each, "--- standard error", stderr[-4000:]])


def test_the_table_of_methods_is_current() -> None:
    if os.environ.get("BELLGLASS_E2B") == "newest":
        pytest.skip("the table covers all releases, and only the newest were run")
    files = [LINES / f"{release}.jsonl" for release in releases()]
    missing = [one.name for one in files if not one.exists()]
    if missing:
        pytest.skip(f"not all releases have passed: {', '.join(missing)}")
    made = subprocess.run([sys.executable, HERE / "table.py", *files], capture_output=True, text=True, check=True).stdout
    if os.environ.get("BELLGLASS_WRITE"):
        PAGE.write_text(made)
    known = PAGE.read_text() if PAGE.exists() else ""
    assert known == made, "docs/guides/e2b-methods.md is old: run this with BELLGLASS_WRITE=1"
