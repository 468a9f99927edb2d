#!/usr/bin/env python3
"""Finds every text that users, operators and models read, counts phrases to avoid, and draws a sample to be rated.

    scripts/texts.py list                          print the kind, file, line and content of each text
    scripts/texts.py count                         count such phrases per 10,000 words of each kind; exit with 1 above the bound
    scripts/texts.py draw SEED OUT ANCHOR...       draw 140 texts, and 30 texts of each ANCHOR (a checkout of another project):
                                                   OUT/sample.tsv names the source of each text, OUT/blind.txt is for the raters
    scripts/texts.py result DIRECTORY              evaluate sample.tsv and ratings-*.tsv in DIRECTORY

The script reads help texts from the executable `BELLGLASS_BINARY`, by default target/tried/bellglass.
"""

from __future__ import annotations

import ast
import json
import os
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
BINARY = os.environ.get("BELLGLASS_BINARY", str(ROOT / "target/tried/bellglass"))
BOUND = 8.0
"""Maximum number of phrases per 10,000 words. `crates/house/src` counts the same phrases in the documents."""
PHRASES = re.compile(
    r"\b(whoever|nobody|somebody|is told|are told|go on|goes on|written down|stands? still|one that|those that|made ahead"
    r"|by itself|what (is|was|may|it|they|a|the)|a stranger|given up|the like)\b",
    re.IGNORECASE,
)
SHARES = {"page": 50, "message": 35, "help": 20, "openapi": 15, "docstring": 15, "script": 5}
PER_ANCHOR = 30
NAMES = re.compile(r"\b(bellglass|ripgrep|rg|linkerd2?)\b", re.IGNORECASE)
"""Names that would reveal to a rater which project a text is from."""


class Text(NamedTuple):
    kind: str
    file: str
    line: int
    about: str
    """The heading, or the name of the option, property or function, that a reader sees next to the text."""
    text: str


def texts() -> Iterator[Text]:
    """Yields every text."""
    for name in files("*.md"):
        yield from (Text("page", name, *found) for found in paragraphs((ROOT / name).read_text()))
    for name in files("crates/*/src/*.rs"):
        if name.startswith("crates/e2e/") or "/tests" in name:
            continue
        yield from (Text("message", name, line, "", text) for line, text in literals((ROOT / name).read_text()))
    for name in files("sdk/*.py"):
        yield from (Text("docstring", name, *found) for found in docstrings((ROOT / name).read_text()))
    for name in (*files("scripts/*"), "justfile", ".ci/run"):
        yield from (Text("script", name, line, "", text) for line, text in headers((ROOT / name).read_text()))
    yield from (Text("help", command, 0, option, text) for command, option, text in help_texts([]))
    description = json.loads((ROOT / "docs/openapi.json").read_text())
    yield from (Text("openapi", path, 0, *found) for path, *found in described(description, ""))


def files(pattern: str) -> list[str]:
    listed = subprocess.run(["git", "ls-files", pattern], cwd=ROOT, capture_output=True, text=True, check=True)
    return listed.stdout.split()


def is_prose(text: str, least: int) -> bool:
    return len(re.findall(r"[A-Za-z]{2,}", text)) >= least


def paragraphs(page: str) -> Iterator[tuple[int, str, str]]:
    """Yields paragraphs, list items and table rows, each with its line and heading. Code blocks are left out."""
    fenced, began, held = False, 0, list[str]()
    heading, columns = "", list[str]()

    def ended() -> Iterator[tuple[int, str, str]]:
        text = " ".join(held)
        held.clear()
        if is_prose(text, 6):
            yield began, heading, text

    for number, line in enumerate(page.splitlines(), 1):
        bare = line.strip()
        if bare.startswith("```"):
            fenced = not fenced
        if fenced or bare.startswith(("#", "```", "|", "<")) or not bare:
            yield from ended()
            if fenced:
                continue
            if bare.startswith("#"):
                heading = bare.lstrip("# ")
            if not bare.startswith("|"):
                columns = []
                continue
            cells = [cell.strip() for cell in bare.strip("|").split(" | ")]
            if not columns:
                columns = cells
            elif is_prose(bare, 6) and len(cells) == len(columns):
                shown = [f"{column}: {cell}" for column, cell in zip(columns, cells, strict=True) if cell]
                yield number, heading, " | ".join(shown)
            continue
        if re.match(r"([-*]|\d+\.) ", bare):
            yield from ended()
        if not held:
            began = number
        held.append(re.sub(r"^([-*]|\d+\.) ", "", bare))
    yield from ended()


RUST = re.compile(r'//[^\n]*|r(#*)"(?:.|\n)*?"\1|"(?:\\(?:.|\n)|[^"\\])*"|\'(?:\\.|[^\'\\])\'')
PARTS = (
    (re.compile(r"(\bfailed\(|\bstep\(|\bact: |ACT: &str = )\s*(&?format!\()?$"), "cannot {} PATH: REASON"),
    (re.compile(r"\bexceeded\(\s*$"), "{} is N, the hard maximum is M"),
    (re.compile(r"Deadline \{ what: $"), "{} timed out after 30s"),
    (re.compile(r"Protocol\(\s*(format!\()?$"), "the guest violated the protocol: {}"),
    (re.compile(r"\b(broken|wrong)\(\s*(format!\()?$"), "NAME: {}"),
    (re.compile(r"lacks\.push\(\s*$"), "lacks: {}"),
)
"""Patterns of the code in front of a literal that is only a part of a message, each with the whole message."""


CLAUSE = re.compile(r"(the|a|an|it|no|there) ")
REST = re.compile(r"(does|do|is|are|has|have|was|were|at least|exceeds|must|cannot be|[{]\w*[}] of) ")
"""Beginnings of literals that are the rest of a sentence. Other code adds the subject, so such a literal cannot be rated alone."""


def literals(code: str) -> Iterator[tuple[int, str]]:
    """Yields the string literals of Rust code that have at least four words: errors, hints and log lines. Tests are left out."""
    code = code.split("\n#[cfg(test)]\nmod tests {", maxsplit=1)[0]
    for found in RUST.finditer(code):
        literal = found[0]
        if not literal.startswith('"') or " " not in literal or "://" in literal[:12]:
            continue
        text = re.sub(r"\\\n\s*", "", literal[1:-1]).replace('\\"', '"')
        if is_prose(text, 4) and "\\n" not in text and not re.match(r"(SELECT|INSERT|CREATE|UPDATE|DELETE|PRAGMA)\b", text):
            before = code[max(0, found.start() - 80) : found.start()]
            whole = next((whole for pattern, whole in PARTS if pattern.search(before) and not CLAUSE.match(text)), "{}")
            if whole == "{}" and REST.match(text):
                continue
            yield code.count("\n", 0, found.start()) + 1, whole.replace("{}", text, 1)


def docstrings(code: str) -> Iterator[tuple[int, str, str]]:
    """Yields the first paragraph of each docstring, with the name of its function or class."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text and is_prose(text, 4):
                name = "" if isinstance(node, ast.Module) else node.name
                yield getattr(node, "lineno", 1), name, " ".join(text.split("\n\n")[0].split())


def headers(script: str) -> Iterator[tuple[int, str]]:
    """Yields each block of comment lines."""
    for found in re.finditer(r"(?m)^(?:# .*\n)+", script):
        text = " ".join(line[2:].strip() for line in found[0].splitlines())
        if is_prose(text, 6):
            yield script.count("\n", 0, found.start()) + 1, text


def help_texts(command: list[str]) -> Iterator[tuple[str, str, str]]:
    """Yields the parts of the `--help` output of a command and of all its subcommands, each part with its option."""
    shown = subprocess.run([BINARY, *command, "--help"], capture_output=True, text=True, check=True).stdout
    name = " ".join(["bellglass", *command])
    for block in re.split(r"\n\s*\n", shown):
        lines = [line.strip() for line in block.splitlines()]
        is_option = lines and re.match(r"(-|\[|<)", lines[0])
        lines, option = (lines[1:], lines[0]) if is_option else (lines, "")
        lines = [line for line in lines if not line.startswith("Usage:") and not line.endswith(":")]
        text = " ".join(lines)
        if is_prose(text, 4) and not block.startswith(" " * 2 + "bellglass"):
            yield name, option, text
    for one in re.findall(r"(?m)^  ([a-z][a-z-]+)  ", shown):
        if one != "help" and one not in command and len(command) < 2:
            asked = subprocess.run([BINARY, *command, one, "--help"], capture_output=True, text=True, check=False)
            if asked.returncode == 0:
                yield from help_texts([*command, one])


def described(part: object, path: str) -> Iterator[tuple[str, str, str]]:
    """Yields the summaries and descriptions of the OpenAPI document, each with the name of the described item."""
    if isinstance(part, dict):
        for name, value in part.items():
            if name in ("summary", "description") and isinstance(value, str):
                if is_prose(value, 3):
                    outside = ("properties", "components", "schemas", "items", "paths", "parameters")
                    names = [word for word in path.split("/") if word and word not in outside and not word.isdigit()]
                    names = [*names[-2:], str(part["name"])] if "name" in part else names[-2:]
                    yield path, " ".join(names), " ".join(value.split())
            else:
                yield from described(value, f"{path}/{name}")
    elif isinstance(part, list):
        for index, value in enumerate(part):
            yield from described(value, f"{path}/{index}")


def anchor(home: Path) -> list[Text]:
    """Returns the documentation comments of another project, each with the documented item, and the paragraphs of its pages."""
    found = []
    for path in sorted(home.rglob("*")):
        name = str(path.relative_to(home))
        if path.suffix == ".md" and "CHANGELOG" not in name:
            found += [Text("page", name, *one) for one in paragraphs(path.read_text())]
        elif path.suffix == ".rs" and "/tests/" not in name:
            code = path.read_text()
            for block in re.finditer(r"(?m)^((?:[ \t]*//[/!] ?.*\n)+)([^\n]*)", code):
                lines = (re.sub(r"^\s*//[/!] ?", "", line) for line in block[1].splitlines())
                text = " ".join(" ".join(lines).split("```")[0].split())
                line = code.count("\n", 0, block.start()) + 1
                if is_prose(text, 6):
                    found.append(Text("comment", name, line, block[2].strip(" {(,"), text))
    return found


def shortened(text: str) -> str:
    """Returns the first sentences of a text, up to about sixty words."""
    sentences = re.split(r"(?<=[.!?:]) ", text)
    kept = sentences[0]
    for sentence in sentences[1:]:
        if len((kept + " " + sentence).split()) > 60:
            break
        kept += " " + sentence
    return kept


def draw(seed: int, out: Path, anchors: list[Path]) -> None:
    chance = random.Random(seed)
    every = list({one.text: one for one in texts()}.values())
    chosen: list[tuple[str, Text]] = []
    for kind, share in SHARES.items():
        chosen += [("bellglass", one) for one in chance.sample([one for one in every if one.kind == kind], share)]
    for home in anchors:
        chosen += [(home.name, one) for one in chance.sample(anchor(home), PER_ANCHOR)]
    chance.shuffle(chosen)
    out.mkdir(parents=True, exist_ok=True)
    rows = ["number\tproject\tkind\tfile\tline\tabout\ttext"]
    blind = []
    for number, (project, one) in enumerate(chosen, 1):
        own = project == "bellglass"
        kept = [one.about, shortened(one.text)] if own else ["", ""]
        rows.append("\t".join([str(number), project, one.kind, one.file, str(one.line), *kept]))
        about = f"[{one.about}] " if one.about else ""
        blind.append(f"{number}. {NAMES.sub('PROJECT', about + shortened(one.text))}\n")
    (out / "sample.tsv").write_text("\n".join(rows) + "\n")
    (out / "blind.txt").write_text("\n".join(blind))


def result(home: Path) -> None:
    sample = [line.split("\t") for line in (home / "sample.tsv").read_text().splitlines()[1:]]
    ours = {row[0]: row[1] == "bellglass" for row in sample}
    for path in sorted(home.glob("ratings-*.tsv")):
        rows = [line.split("\t") for line in path.read_text().splitlines()[1:]]
        assert [row[0] for row in rows] == [row[0] for row in sample], path
        for title, own in (("ours", True), ("anchors", False)):
            counted = Counter(row[1] for row in rows if ours[row[0]] is own)
            total = sum(counted.values())
            shown = ", ".join(f"{rating} {counted[rating]}" for rating in ("clear", "odd", "obscure"))
            print(f"{path.name} {title}: {shown}; {100 * counted['clear'] / total:.0f} % clear")


def count() -> int:
    words, hits = Counter[str](), Counter[str]()
    for one in texts():
        words[one.kind] += len(one.text.split())
        hits[one.kind] += len(PHRASES.findall(one.text))
    rates = {kind: 1e4 * hits[kind] / words[kind] for kind in words}
    for kind, rate in rates.items():
        print(f"{kind:10} {rate:5.1f} phrases per 10,000 words ({hits[kind]} in {words[kind]})")
    return max(rates.values()) > BOUND


def main() -> int:
    match sys.argv[1:]:
        case ["list"]:
            for one in texts():
                print(*one, sep="\t")
        case ["count"]:
            return count()
        case ["draw", seed, out, *anchors]:
            draw(int(seed), Path(out), [Path(one) for one in anchors])
        case ["result", home]:
            result(Path(home))
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
