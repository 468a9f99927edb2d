"""What user code shows: values, displays, figures. Made by IPython's formatters where there is IPython."""

import base64
import sys

from bellglass_interpreter import figures

conversation = None
"""The channel of this process, once it has one."""


def begin(channel):
    global conversation
    conversation = channel
    figures.begin()


class Bundle(dict):
    """Data by MIME type, with what else the result says of it (`name`, `chart`). Passes through IPython untouched."""

    def __init__(self, data, extra=None):
        super().__init__(data)
        self.extra = extra or {}


def encode(data):
    """Binary formats as base64 text, as notebooks have them."""
    return {
        mime: base64.b64encode(content).decode("ascii") if isinstance(content, (bytes, bytearray)) else content
        for mime, content in data.items()
    }


def send(kind, data, metadata=None, **more):
    if conversation is None:
        return
    extra = getattr(data, "extra", {})
    conversation.result({"kind": kind, "data": encode(data), "metadata": metadata or {}, **more, **extra})


def clear(wait=False):
    if conversation is not None:
        conversation.result({"kind": "clear", "wait": bool(wait)})


def shell():
    """IPython's shell of this process, where there is one."""
    module = sys.modules.get("bellglass_interpreter.shell")
    return module.current() if module else None


def value(item):
    """Shows the value of the last expression of a run."""
    if item is None:
        return
    formatting = shell()
    if formatting is None:
        send("value", plain(item))
        return
    data, metadata = formatting.display_formatter.format(item)
    if data:
        send("value", data, metadata)


def plain(item):
    """What can be said of an object without IPython."""
    shown = figures.bundle(item)
    return shown if shown is not None else Bundle({"text/plain": repr(item)})


def display(*items, **options):
    """Stands in for IPython's function of this name where there is no IPython."""
    for item in items:
        send("display", plain(item))
