"""Warm start: imports what most code wants, says so, and runs each piece of code in a fork of itself.

Reads one JSON object a line, `{"code": "..."}`, and answers each with one line, `{"exit_code": 0}`, once its process has ended. What the
code writes goes to the same standard output and error, before the answer. No state flows from one run to the next.
"""

import json
import os
import sys
import traceback

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot  # noqa: E402
import numpy  # noqa: E402, F401
import pandas  # noqa: E402, F401
import scipy  # noqa: E402, F401
import seaborn  # noqa: E402, F401


def run(code: str) -> int:
    """Runs code as a fresh `__main__` in this process, which is a fork made for it. Says what to exit with."""
    try:
        exec(compile(code, "<code>", "exec"), {"__name__": "__main__", "__builtins__": __builtins__})
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def main() -> None:
    print("SANDBOX_READY", flush=True)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            code = run(json.loads(line)["code"])
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code & 0xFF)
        _, status = os.waitpid(child, 0)
        print(json.dumps({"exit_code": os.waitstatus_to_exitcode(status)}), flush=True)


if __name__ == "__main__":
    main()
