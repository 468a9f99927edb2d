"""What the parent does ahead, so that no fork has to: imports, the shell, the fonts, the threads of BLAS."""

import gc
import glob
import importlib
import importlib.util
import os
import shutil
import sys
import tempfile
import time

from bellglass_interpreter import fork, hooks, threads

FONT_LISTS = "/var/cache/matplotlib/fontlist-*.json"
TEMPORARY = ("/run", "/var/tmp", "/tmp", "/dev/shm")

state = {"modules": frozenset()}
"""`modules`: top-level names that are loaded here and that a user may have another version of."""


def up(imports):
    """Imports everything and says what there is: the parent's `ready`."""
    begun = time.monotonic()
    private = private_directory()
    os.environ["MPLCONFIGDIR"] = private
    os.environ["IPYTHONDIR"] = private
    threads.keep_to_one()
    hooks.install()
    failed, threaded_by = [], None
    for name in dict.fromkeys([*imports, "IPython"]):
        if name == "IPython" and name not in imports and not importlib.util.find_spec(name):
            continue
        error = import_one(name)
        if error:
            failed.append({"module": name, "error": error})
        if threaded_by is None and thread_count() > 1:
            threaded_by = name
    prepare()
    if threaded_by is None and thread_count() > 1:
        # The linear algebra, which comes with it, keeps the threads that it was given.
        threaded_by = "numpy"
    shutil.rmtree(private, ignore_errors=True)
    os.environ.clear()
    state["modules"] = frozenset(foreign_modules())
    gc.collect()
    gc.freeze()
    return {
        "python": ".".join(map(str, sys.version_info[:3])),
        "modules": sorted(state["modules"]),
        "failed": failed,
        "threaded_by": threaded_by,
        "import_ms": round((time.monotonic() - begun) * 1000),
    }


def import_one(name):
    """Imports a module. Says why it could not, or nothing."""
    try:
        if name == "IPython":
            from bellglass_interpreter import shell

            shell.create()
        else:
            importlib.import_module(name)
    except BaseException as error:  # noqa: BLE001
        return f"{type(error).__name__}: {error}"
    return None


def prepare():
    """Loads what forks use of ours, and of the standard library, so that it is shared and not loaded each time."""
    for name in ("run", "context", "packages", "missing", "shadow", "boxes", "charts", "ending"):
        importlib.import_module(f"bellglass_interpreter.{name}")
    fork.prepare()
    threads.find()
    threads.set_ahead()


def private_directory():
    """A directory only the parent may enter, below one that no user owns, with the image's list of fonts."""
    own = None
    for place in TEMPORARY:
        try:
            if os.stat(place).st_uid in (0, os.getuid()):
                own = tempfile.mkdtemp(prefix="interpreter-", dir=place)
                break
        except OSError:
            continue
    own = own or tempfile.mkdtemp(prefix="interpreter-")
    for path in glob.glob(FONT_LISTS):
        try:
            shutil.copy(path, own)
        except OSError:
            pass
    return own


def thread_count():
    return len(os.listdir("/proc/self/task"))


def foreign_modules():
    """Top-level names of loaded modules that are not Python's. Files with an underscore belong to another module."""
    for name in {name.partition(".")[0] for name in list(sys.modules)}:
        known = name in sys.stdlib_module_names or name in ("__main__", "bellglass_interpreter")
        if not known and (not name.startswith("_") or hasattr(sys.modules[name], "__path__")):
            yield name
