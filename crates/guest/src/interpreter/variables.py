"""What a context holds: names, types, sizes and a glance at each, without running into what users make of `repr`."""

import reprlib
import signal
import sys
import types

MOST = 500
LONGEST = 200
SECONDS_EACH = 0.1
SECONDS_ALL = 2.0
HIDDEN = {"In", "Out", "exit", "quit", "get_ipython", "display"}


class TooSlow(BaseException):
    """Raised into a repr that takes too long. Not an Exception, so that nobody swallows it."""


def listing(shell):
    """The user's variables, sorted by name."""
    names = sorted(name for name in list(shell.user_ns) if mine(name, shell))[:MOST]
    found = []
    with Limit(SECONDS_ALL) as limit:
        for name in names:
            found.append(describe(name, shell.user_ns.get(name), limit))
    return found


def mine(name, shell):
    if not isinstance(name, str) or name.startswith("_"):
        return False
    item = shell.user_ns[name]
    if isinstance(item, types.ModuleType):
        return False
    if name in shell.user_ns_hidden and shell.user_ns_hidden[name] is item:
        return False
    return name not in HIDDEN


class Limit:
    """A timer for code of the user's that runs while we look at its objects. Gives back the timer it has found."""

    def __init__(self, seconds):
        self.left = seconds

    def __enter__(self):
        self.timer = signal.setitimer(signal.ITIMER_REAL, 0)
        self.handler = signal.signal(signal.SIGALRM, self.ring)
        return self

    def __exit__(self, *exception):
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self.handler if self.handler is not None else signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, *self.timer)

    @staticmethod
    def ring(number, frame):
        raise TooSlow

    def call(self, function, *arguments):
        """What a function gives, or None if it raises or takes too long."""
        seconds = min(self.left, SECONDS_EACH)
        if seconds <= 0:
            return None
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, seconds)
                return function(*arguments)
            finally:
                rest, _ = signal.setitimer(signal.ITIMER_REAL, 0)
                self.left -= seconds - rest
        except (Exception, TooSlow):  # noqa: BLE001
            return None


def describe(name, item, limit):
    preview = limit.call(glance, item)
    return {
        "name": name,
        "type": kind_of(item),
        "shape": limit.call(countable, shape, item),
        "size": limit.call(countable, size, item),
        "preview": "<not available>" if preview is None else preview[:LONGEST],
    }


def kind_of(item):
    try:
        return str(qualified(type(item)))
    except Exception:  # noqa: BLE001
        return "?"


def qualified(kind):
    """The type as users know it: `pandas.DataFrame`, and not the module that happens to define it."""
    module, name = kind.__module__, kind.__qualname__
    if module in ("builtins", "__main__"):
        return name
    parts = module.split(".")
    for length in range(1, len(parts)):
        shorter = ".".join(parts[:length])
        if vars(sys.modules.get(shorter, kind)).get(name) is kind:
            return f"{shorter}.{name}"
    return f"{module}.{name}"


def countable(measure, item):
    """What an object says of itself, if it is something that can be counted."""
    found = measure(item)
    counts = found if isinstance(found, list) else [found]
    return found if all(type(count) is int and 0 <= count < 1 << 63 for count in counts) else None


def shape(item):
    found = getattr(item, "shape", None)
    if found is not None and not isinstance(item, type):
        return [int(length) for length in found]
    if isinstance(item, (list, tuple, dict, set, frozenset)):
        return [len(item)]
    return None


def size(item):
    if isinstance(item, type):
        return sys.getsizeof(item)
    if hasattr(item, "memory_usage"):
        usage = item.memory_usage(index=True)
        return int(usage.sum() if hasattr(usage, "sum") else usage)
    if hasattr(item, "estimated_size"):
        return int(item.estimated_size())
    if isinstance(getattr(item, "nbytes", None), int):
        return item.nbytes
    return sys.getsizeof(item)


class Short(reprlib.Repr):
    """Looks at the beginning of containers and of long texts only."""

    def __init__(self):
        super().__init__()
        self.maxlevel = 4
        self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = self.maxdict = self.maxdeque = 12
        self.maxstring = self.maxother = self.maxlong = LONGEST

    def repr_str(self, text, level):
        return repr(text[:LONGEST]) if len(text) > LONGEST else repr(text)

    def repr_bytes(self, content, level):
        return repr(content[:LONGEST])

    repr_bytearray = repr_bytes

    def repr_int(self, number, level):
        bits = number.bit_length()
        return repr(number) if bits < 4096 else f"<int of {bits} bits>"

    def repr_instance(self, item, level):
        return repr(item)[: self.maxother]


short = Short()


def glance(item):
    if hasattr(item, "head") and hasattr(item, "shape") and not isinstance(item, type):
        return repr(item.head(5))
    return short.repr(item)
