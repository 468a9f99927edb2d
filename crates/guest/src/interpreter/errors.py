"""Exceptions of user code: as text, as Python prints them, and as a result. Frames of ours appear in neither."""

import ast
import re
import sys
import traceback
from contextlib import suppress

OURS = "<bellglass_interpreter"
MOST_FRAMES = 50
LONGEST_MESSAGE = 20_000
LONGEST_TEXT = 100_000
MAGIC = re.compile(r"^\s*[%!?]|=\s*[%!]|\?\s*$", re.MULTILINE)


def capture(error, hidden=()):
    """The exception and all it is chained to, without frames of files that begin with ours or one of `hidden`."""
    captured = traceback.TracebackException(type(error), error, error.__traceback__, compact=True)
    strip(captured, (OURS, *hidden), set())
    return captured


def strip(captured, hidden, seen):
    if captured is None or id(captured) in seen:
        return
    seen.add(id(captured))
    if captured.stack is not None:
        captured.stack[:] = [frame for frame in captured.stack if not frame.filename.startswith(hidden)]
        # Without a frame there is no heading either: a syntax error of the code itself.
        captured.stack = captured.stack or None
    for other in (captured.__cause__, captured.__context__, *(getattr(captured, "exceptions", None) or ())):
        strip(other, hidden, seen)


def report(error, channel, hidden=(), hook=None):
    """Prints the traceback to standard error, or lets the user's `hook` do that, and sends it as a result."""
    try:
        captured = capture(error, hidden)
        text = "".join(captured.format())
        frames = frames_of(captured, error)
    except Exception:  # noqa: BLE001
        text, frames = f"{type(error).__name__}\n", []
    with suppress(Exception):
        if hook is None:
            sys.stderr.write(text)
        else:
            hook(type(error), error, first_foreign(error.__traceback__))
    send(channel, type(error).__name__, message_of(error), frames, text)


def as_python_says(error, source, name):
    """What Python itself says of a cell that cannot be read: IPython reads it in steps that fail in ways of their own.

    An error of code that ran is left as it is, and so is one beside a magic, which Python cannot read at all.
    """
    frames = traceback.walk_tb(error.__traceback__)
    ran = any(frame.f_code.co_filename == name for frame, _ in frames)
    if ran or MAGIC.search(source):
        return error
    try:
        compile(source, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    except SyntaxError as plain:
        return plain.with_traceback(None)
    return error


def first_foreign(trace):
    """The part of a traceback that begins with the user's code."""
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(OURS):
        trace = trace.tb_next
    return trace


def send(channel, name, message, frames, text):
    channel.result(
        {
            "kind": "error",
            "name": name,
            "message": cut(message, LONGEST_MESSAGE),
            "frames": frames,
            "text": cut(text, LONGEST_TEXT),
        }
    )


def message_of(error):
    try:
        return str(error)
    except Exception:  # noqa: BLE001
        return "<exception str() failed>"


def frames_of(captured, error):
    """The frames from the outermost to the innermost; of very many, the first and the last."""
    frames = [
        {"file": frame.filename, "line": frame.lineno, "function": frame.name, "source": frame.line or ""}
        for frame in some(captured.stack or ())
    ]
    if isinstance(error, SyntaxError) and error.lineno:
        source = error.text if isinstance(error.text, str) else ""
        frames.append(
            {
                "file": error.filename or "",
                "line": error.lineno,
                "function": "<module>",
                "source": source.strip(),
            }
        )
    return frames


def some(stack):
    half = MOST_FRAMES // 2
    return list(stack) if len(stack) <= MOST_FRAMES else [*stack[:half], *stack[-half:]]


def cut(text, longest):
    """The head and the tail of a text that is too long, with the number of characters between them."""
    if len(text) <= longest:
        return text
    half = longest // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"
