"""Generates `docs/guides/e2b-methods.md`, which shows the methods of the SDKs that work.

    python table.py python-2.63.0-sync.jsonl python-2.63.0-async.jsonl javascript-2.51.0.jsonl …

Each file holds the output of one scenario program. Its name consists of the language, the release and the kind (sync or async).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

HEAD = """# E2B's SDKs: method by method

This page shows, for each public method of E2B's own SDKs, whether it works with Bellglass. The scenarios in `compat/e2b` call the
published, unmodified packages and generate the tables. *works* means that a scenario called the method, and that the method behaved as
expected. *differs* means that it behaves differently from E2B's service, as described in the note. *not offered* means that the server
refuses it. To regenerate this page, run `BELLGLASS_WRITE=1 just compat -k e2b`.
"""
TITLES = {"python": "Python", "javascript": "JavaScript"}
#: If the runs of one release differ, the table shows the result that comes first in this list.
WORST_FIRST = ("not offered", "differs", "not tried", "works")


@dataclass(frozen=True)
class Run:
    """The results of one scenario program, by method."""

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
    """Returns the whole page."""
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
    lines = [f"## {title}", "", f"Tested with the releases {tried}.", "", "| method | result | note |", "|---|---|---|"]
    for method in methods:
        result, notes = row(method, runs, releases)
        lines.append(f"| `{method}` | {result} | {'; '.join(notes)} |")
    return "\n".join([*lines, ""])


def row(method: str, runs: list[Run], releases: list[tuple[int, ...]]) -> tuple[str, list[str]]:
    """Returns the result of the newest release that has the method, and the notes on it."""
    having = [release for release in releases if any(run.release == release and method in run.results for run in runs)]
    result, notes = worst(method, [run for run in runs if run.release == having[0]])
    kinds = {run.kind for run in runs if run.release == having[0]}
    with_it = {run.kind for run in runs if run.release == having[0] and method in run.results}
    if with_it != kinds:
        notes.append(f"only in the {', '.join(sorted(with_it))} API")
    if having[0] != releases[0]:
        notes.append(f"the method was removed after {dotted(having[0])}")
    if having[-1] != releases[-1]:
        notes.append(f"the method was added after {dotted(releases[releases.index(having[-1]) + 1])}")
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
