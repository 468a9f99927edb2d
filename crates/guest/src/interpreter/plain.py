"""The same runs and contexts in an interpreter just started, for users whose packages the parent's would hide."""

import fcntl
import importlib.util
import json
import os
import sys

from bellglass_interpreter import fork, hooks
from bellglass_interpreter.channel import Channel


def main(channel_descriptor, order_descriptor):
    with open(order_descriptor, encoding="utf-8") as file:
        order = json.load(file)
    fcntl.fcntl(channel_descriptor, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
    # The directory of the script comes first, which here is no directory of anybody.
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = ""
    sys.argv = [""]
    fork.prepare()
    fork.make_streams()
    hooks.install()
    make_shell()
    channel = Channel(channel_descriptor, order["records"])
    if order["kind"] == "context":
        from bellglass_interpreter import context

        context.main(channel, plain=True)
    else:
        from bellglass_interpreter import run

        run.main(channel, plain=True)
    os._exit(1)


def make_shell():
    """The shell, unless the user's packages break it; then values are shown as plain text."""
    if importlib.util.find_spec("IPython") is None:
        return
    try:
        from bellglass_interpreter import shell

        shell.create()
    except Exception as error:  # noqa: BLE001
        print(f"warning: IPython is not usable: {type(error).__name__}: {error}", file=sys.stderr)
