"""Makes the sources in front of it importable as one package, and begins.

The guest hands over one text: a line `SOURCES = {...}` with every other file of this directory, then this file. There
is nothing to look up on a disk, so nothing that a user can write decides what runs here.
"""

import linecache
import os
import sys
from importlib.machinery import ModuleSpec

PACKAGE = "bellglass_interpreter"


class Sources:
    """Finds and loads modules of the package from the text that was handed over."""

    sources = globals()["SOURCES"]

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        package, _, module = name.partition(".")
        if package != PACKAGE or (module and module not in cls.sources):
            return None
        return ModuleSpec(name, cls, origin=f"<{name}>", is_package=not module)

    @staticmethod
    def create_module(spec):
        return None

    @classmethod
    def exec_module(cls, module):
        """Runs one source. Its lines are kept for tracebacks, which a fault of ours would need."""
        source = cls.sources.get(module.__name__.partition(".")[2], "")
        file = f"<{module.__name__}>"
        linecache.cache[file] = (len(source), None, source.splitlines(True), file)
        exec(compile(source, file, "exec", dont_inherit=True), vars(module))  # noqa: S102


def take_text(path):
    """The whole text this process was started from. It is read once; no process keeps its descriptor."""
    descriptor = int(path.rpartition("/")[2])
    with open(path, encoding="utf-8", newline="") as file:
        text = file.read()
    os.close(descriptor)
    return text


def main():
    text = take_text(sys.argv[0])
    sys.meta_path.append(Sources)
    package = __import__(PACKAGE)
    package.text = text
    if sys.argv[1:2] == ["plain"]:
        from bellglass_interpreter import plain

        plain.main(int(sys.argv[2]), int(sys.argv[3]))
    else:
        from bellglass_interpreter import parent

        parent.main()


main()
