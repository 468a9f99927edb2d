"""When a fork is of no use: the user has another version of what the parent has loaded.

Such a process replaces itself by a plain interpreter, which runs the same code of ours without a parent.
"""

import importlib.machinery
import json
import os
import sys

import bellglass_interpreter
from bellglass_interpreter import fork, identity, warm

SUFFIXES = tuple(importlib.machinery.all_suffixes())


def shadowed():
    """Names that are loaded here and that a new interpreter would find elsewhere first."""
    places = [os.getcwd()]
    places += [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    user = fork.user_site()
    if user:
        places.append(user)
    found = set()
    for place in places:
        try:
            names = os.listdir(place)
        except OSError:
            continue
        found.update(name.partition(".")[0] for name in names if shadows(place, name))
    return sorted(found)


def shadows(place, name):
    """Whether an entry is a module or a package of a name that is loaded. A directory alone is neither."""
    top, dot, _ = name.partition(".")
    if top not in warm.state["modules"]:
        return False
    if dot:
        return name[len(top) :] in SUFFIXES
    return any(os.path.exists(os.path.join(place, name, f"__init__{suffix}")) for suffix in SUFFIXES)


def replace_if_needed(kind, channel, records):
    """Goes on as a plain interpreter where it must, taking along the records that were read already."""
    names = shadowed()
    if not names:
        return
    identity.hold_interrupts()
    channel.result({"kind": "plain", "shadowed": names})
    sources = memory("interpreter", bellglass_interpreter.text.encode("utf-8"))
    order = memory("order", json.dumps({"kind": kind, "records": [*records, *channel.kept]}).encode("ascii"))
    os.set_inheritable(channel.descriptor, True)
    arguments = [sys.executable, "-B", f"/proc/self/fd/{sources}", "plain", str(channel.descriptor), str(order)]
    os.execve(sys.executable, arguments, os.environ)


def memory(name, content):
    """Content in memory that the next program of this process can read."""
    descriptor = os.memfd_create(name, 0)
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
