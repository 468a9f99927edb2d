"""From a fork of the parent to a Python that looks as if it had just been started by the user."""

import ctypes
import fcntl
import io
import os
import site
import sys
import tempfile
import time
import types

from bellglass_interpreter import identity, threads
from bellglass_interpreter.channel import Channel

CHANNEL_FROM = 500
"""Descriptors below belong to user code, which likes to count on the lowest being free."""

GENERATOR_WORDS = 624

streams = []
generator = []
base_path = []
site_path = []
user_site_allowed = True


def prepare():
    """Splits the path where a user's own packages go: after the standard library, before what the image has."""
    sites = set(site.getsitepackages())
    first = next((index for index, entry in enumerate(sys.path) if entry in sites), len(sys.path))
    base_path[:], site_path[:] = sys.path[:first], sys.path[first:]
    allow_user_site()
    streams[:] = [
        open_stream(0, "r", "surrogateescape"),
        open_stream(1, "w", "backslashreplace"),
        open_stream(2, "w", "backslashreplace"),
    ]
    find_generator()
    if sys.version_info >= (3, 14):
        fork_by_default()


def allow_user_site():
    """A virtual environment that hides the system's packages hides those of the user too."""
    global user_site_allowed
    try:
        with open(os.path.join(sys.prefix, "pyvenv.cfg"), encoding="utf-8") as file:
            lines = [line.replace(" ", "").strip().lower() for line in file]
        user_site_allowed = "include-system-site-packages=true" in lines
    except OSError:
        user_site_allowed = True


def fork_by_default():
    """Newer Pythons start workers by importing the file that `__main__` came from; code that was sent has none."""
    from multiprocessing import context

    context._default_context._default_context = context._concrete_contexts["fork"]


def begin(request, descriptors, own):
    """Becomes the user and runs what the guest asks for. Does not return."""
    for descriptor in own:
        os.close(descriptor)
    channel = Channel(place(descriptors))
    try:
        identity.default_signals()
        identity.become_user(request["uid"], request["group"])
    except OSError as error:
        refuse(channel, error.errno, f"cannot become user {request['uid']}: {error.strerror}")
    try:
        os.chdir(request["cwd"])
    except OSError as error:
        refuse(channel, error.errno, f"cannot enter {request['cwd']}: {error.strerror}")
    make_new(request["env"])
    if request["kind"] == "context":
        from bellglass_interpreter import context

        context.main(channel)
    else:
        from bellglass_interpreter import run

        run.main(channel)


def refuse(channel, number, message):
    channel.tell({"refused": {"errno": number or 0, "message": message}})
    os._exit(127)


def place(descriptors):
    """Puts the streams where they belong and says where the channel is."""
    *streams, channel = descriptors
    placed = fcntl.fcntl(channel, fcntl.F_DUPFD_CLOEXEC, CHANNEL_FROM)
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
    for descriptor in descriptors:
        os.close(descriptor)
    return placed


def make_new(environment):
    """Rebuilds what a new interpreter makes at its start. The environment of the parent, and so of a fork, is empty."""
    for name, value in environment.items():
        os.environ[name] = value
    if "TZ" in environment:
        time.tzset()
    sys.argv = [""]
    make_path()
    make_streams()
    reseed()
    tempfile._name_sequence = None
    tempfile.tempdir = None
    forget_directories()
    threads.want(environment)


def make_path():
    extra = [os.path.abspath(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    here = [] if os.environ.get("PYTHONSAFEPATH") else [""]
    sys.path[:] = [*here, *extra, *base_path]
    add_user_site()
    sys.path += [entry for entry in site_path if entry not in sys.path]


def user_site():
    """Where packages of the user are, or None where this Python has no such place."""
    if not user_site_allowed or os.environ.get("PYTHONNOUSERSITE"):
        return None
    site.USER_BASE = site.USER_SITE = None
    return site.getusersitepackages()


def add_user_site():
    """Puts the user's packages before those of the image, if there are any and they are not there yet."""
    place = user_site()
    if place is None or place in sys.path or not os.path.isdir(place):
        return
    site.ENABLE_USER_SITE = True
    after = [entry for entry in sys.path if entry in site_path]
    sys.path[:] = [entry for entry in sys.path if entry not in site_path]
    site.addsitedir(place, set(sys.path))
    sys.path += after


def make_streams():
    """Streams made ahead for the same descriptors, on which others lie now."""
    sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__ = streams


def open_stream(descriptor, mode, errors):
    """A standard stream. What cannot be encoded is written in a readable form, never raised."""
    name = ("<stdin>", "<stdout>", "<stderr>")[descriptor]
    binary = open(descriptor, mode + "b", closefd=False)  # noqa: SIM115
    binary.raw.name = name
    text = io.TextIOWrapper(binary, encoding="utf-8", errors=errors, newline=None, line_buffering=mode == "w")
    text.mode = mode
    return text


def find_generator():
    """Where the state of numpy's global generator lies: its words, then how many of them are used up."""
    legacy = sys.modules.get("numpy.random.mtrand")
    bits = getattr(getattr(legacy, "_rand", None), "_bit_generator", None)
    if type(bits).__name__ == "MT19937" and bits.state["state"]["pos"] >= GENERATOR_WORDS - 1:
        generator[:] = [bits.ctypes.state_address]


def reseed():
    """A new state for numpy, written straight to where it is, which takes a tenth of asking for it.

    Python's own generator sees to this itself. All words count as used up, as after any seed.
    """
    for address in generator:
        ctypes.memmove(address, os.urandom(4 * GENERATOR_WORDS), 4 * GENERATOR_WORDS)


def forget_directories():
    """matplotlib remembers the parent's private directory; the user's own is to be found anew."""
    matplotlib = sys.modules.get("matplotlib")
    for name in ("get_configdir", "get_cachedir"):
        function = getattr(matplotlib, name, None)
        if isinstance(function, types.FunctionType) and "called" in function.__code__.co_freevars:
            function.__closure__[function.__code__.co_freevars.index("called")].cell_contents = False
