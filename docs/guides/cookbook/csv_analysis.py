"""Analyses CSV files: the model writes scripts and fixes those that fail. The files that the scripts save are downloaded.

python csv_analysis.py "Which region earns most? Plot it." results sales.csv regions.csv
"""

import json
import sys
from pathlib import Path

from bellglass import Session
from openai import OpenAI

MODEL = "gpt-5.4"
TURNS_MAX = 40
"""Writing, running and fixing a script take one turn each."""
FAILURES_MAX = 5
"""After this many failed runs in a row, the program gives up so that a person can look at the problem."""
CLOSING = """
When the results are saved, answer in plain text: that completes the analysis.
"""


def analyse(question: str, results: Path, tables: list[Path]) -> str:
    with Session.create("analysis", timeout=120) as session:
        # With this id, the session's files can be fetched even if this program is killed.
        print(f"session {session.id}", file=sys.stderr)
        # The datasets are in every sandbox of the session before anything runs.
        known = [session.add_dataset(table.stem, table) for table in tables]
        places = "\n".join(f"- {one['name']}: {one['path']} ({one['size_bytes']} bytes)" for one in known)
        answer = converse(session, f"{question}\n\nThe datasets:\n{places}")
        for path in session.save_artifacts(results):
            print(f"saved {path}", file=sys.stderr)
    return answer


def converse(session: Session, task: str) -> str:
    model, tools = OpenAI(), session.openai_tools()
    messages = [{"role": "system", "content": session.prompt() + CLOSING}, {"role": "user", "content": task}]
    failures = []
    for _ in range(TURNS_MAX):
        completion = model.chat.completions.create(model=MODEL, messages=messages, tools=tools)
        message = completion.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            return message.content or ""
        for answer in session.handle_openai(message):
            messages.append(answer)
            result = json.loads(answer["content"])
            # The `hint` of each result names the next step. After an error, the model edits the script and runs it again.
            print(result.get("hint") or result, file=sys.stderr)
            if "exit_code" in result:
                failures = [*failures, result["stderr"]] if result["exit_code"] else []
        if len(failures) >= FAILURES_MAX:
            raise SystemExit(f"{len(failures)} runs failed in a row; the last error was:\n{failures[-1]}")
    raise SystemExit(f"no answer after {TURNS_MAX} turns")


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit("usage: csv_analysis.py QUESTION RESULTS TABLE.csv...")
    print(analyse(sys.argv[1], Path(sys.argv[2]), [Path(name) for name in sys.argv[3:]]))
