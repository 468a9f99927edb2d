"""How a process of ours ends: as an interpreter ends, without tearing down what it shares with the parent."""

import atexit
import gc
import io
import os
import signal
import sys
import threading
from contextlib import suppress

from bellglass_interpreter.channel import flush
from bellglass_interpreter.identity import libc


def finish(status):
    """Joins threads, runs exit functions, lets go of the user's objects, flushes, and is gone."""
    quietly(threading._shutdown)
    quietly(atexit._run_exitfuncs)
    flush()
    quietly(release)
    flush()
    libc.fflush(None)
    os._exit(status & 0xFF)


def interrupted():
    """Ends as Python does after a KeyboardInterrupt that nobody caught: by the signal itself."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    flush()
    libc.fflush(None)
    os.kill(os.getpid(), signal.SIGINT)
    os._exit(130)


def quietly(step):
    """Runs a step of the end. Nothing that it raises keeps the process from ending."""
    try:
        step()
    except BaseException as error:  # noqa: BLE001
        with suppress(BaseException):
            print(f"Exception ignored at the end: {type(error).__name__}: {error}", file=sys.stderr)


def release():
    """Drops the user's objects, so that files nobody closed are closed and written, then writes out those still open.

    Threads that run on would fall over missing names, so where there are any, names stay.
    """
    main = sys.modules.get("__main__")
    if main is not None and threading.active_count() == 1:
        names = vars(main)
        for private in (True, False):
            for name in list(names):
                if name != "__builtins__" and name.startswith("_") == private:
                    names[name] = None
        gc.collect()
    for item in gc.get_objects():
        if isinstance(item, (io.BufferedWriter, io.TextIOWrapper, io.BufferedRandom)) and not item.closed:
            with suppress(Exception):
                item.flush()
