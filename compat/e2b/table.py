"""What works of the SDKs, as `docs/guides/e2b-methods.md` tells it.

    python table.py python-2.63.0-sync.jsonl python-2.63.0-async.jsonl javascript-2.51.0.jsonl …

Each file holds what a program of the scenarios has printed, and its name says with what: language, release, kind.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

HEAD = """# E2B's SDKs: method by method

What becomes of each public method of E2B's own SDKs against Belljar. The table is made by the scenarios of `compat/e2b`, which call
the packages as they are published: *works* is a method that a scenario called and that did as it should. It is written anew with
`BELLJAR_WRITE=1 just compat -k e2b`.
"""
TITLES = {"python": "Python", "javascript": "JavaScript"}
#: Where runs of one release differ, the first of these is what is told.
WORST_FIRST = ("not offered", "differs", "not tried", "works")


@dataclass(frozen=True)
class Run:
    """What one program has said of the methods."""

    language: str
    release: tuple[int, ...]
    kind: str
    results: dict[str, tuple[str, str]]


def read(path: Path) -> Run:
    language, release, *kind = path.stem.split("-")
    last = json.loads(path.read_text().splitlines()[-1])
    results = {one["method"]: (one["result"], one["note"]) for one in last["methods"]}
    return Run(language, tuple(map(int, release.split("."))), "".join(kind), results)


def table(runs: Iterable[Run]) -> str:
    """The whole page."""
    by_language: dict[str, list[Run]] = {}
    for run in runs:
        by_language.setdefault(run.language, []).append(run)
    parts = [HEAD]
    for language, title in TITLES.items():
        if language in by_language:
            parts.append(section(title, by_language[language]))
    return "\n".join(parts)


def section(title: str, runs: list[Run]) -> str:
    releases = sorted({run.release for run in runs}, reverse=True)
    methods = sorted({method for run in runs for method in run.results}, key=lambda name: (name.lower(), name))
    tried = ", ".join(dotted(one) for one in releases)
    lines = [f"## {title}", "", f"Tried with the releases {tried}.", "", "| method | | note |", "|---|---|---|"]
    for method in methods:
        result, notes = row(method, runs, releases)
        lines.append(f"| `{method}` | {result} | {'; '.join(notes)} |")
    return "\n".join([*lines, ""])


def row(method: str, runs: list[Run], releases: list[tuple[int, ...]]) -> tuple[str, list[str]]:
    """The result of the newest release that has the method, and what there is to say of it."""
    having = [release for release in releases if any(run.release == release and method in run.results for run in runs)]
    result, notes = worst(method, [run for run in runs if run.release == having[0]])
    kinds = {run.kind for run in runs if run.release == having[0]}
    with_it = {run.kind for run in runs if run.release == having[0] and method in run.results}
    if with_it != kinds:
        notes.append(f"{', '.join(sorted(with_it))} only")
    if having[0] != releases[0]:
        notes.append(f"gone after {dotted(having[0])}")
    if having[-1] != releases[-1]:
        notes.append(f"not yet in {dotted(releases[releases.index(having[-1]) + 1])}")
    for release in having[1:]:
        other, why = worst(method, [run for run in runs if run.release == release])
        if other != result:
            notes.append(f"{other} in {dotted(release)}" + (f": {why[0]}" if why else ""))
    return result, notes


def worst(method: str, runs: list[Run]) -> tuple[str, list[str]]:
    said = [run.results[method] for run in runs if method in run.results]
    result = next(one for one in WORST_FIRST if one in {result for result, _ in said})
    return result, sorted({note for found, note in said if found == result and note})


def dotted(release: tuple[int, ...]) -> str:
    return ".".join(map(str, release))


if __name__ == "__main__":
    sys.stdout.write(table(read(Path(one)) for one in sys.argv[1:]))
