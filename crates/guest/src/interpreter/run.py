"""A stateless run: code as a script, in a fork of its own, that ends with it."""

import __future__

import ast
import builtins
import io
import linecache
import os
import sys
import types
from contextlib import suppress

from bellglass_interpreter import (
    ending,
    errors,
    figures,
    identity,
    missing,
    packages,
    results,
    shadow,
    threads,
    warm,
)

FILE = "<code>"
FUTURE = 0
for _name in __future__.all_feature_names:
    FUTURE |= getattr(__future__, _name).compiler_flag


def main(channel, plain=False):
    """Serves the one request of this process and ends it."""
    request = channel.next()["run"]
    results.begin(channel)
    try:
        identity.take_interrupts()
        module = prepare(request, channel, plain)
    except KeyboardInterrupt:
        ending.interrupted()
    status = execute(request["code"], module, channel)
    figures.finish()
    if status is None:
        ending.interrupted()
    del module
    ending.finish(status)


def prepare(request, channel, plain):
    """Everything before the first line of the code. Gives the module to run it in."""
    try:
        packages.require(request.get("requirements") or [], request.get("install_ms"))
    except packages.InstallationError as error:
        error.report(channel)
        ending.finish(1)
    if not plain:
        request["requirements"] = []
        shadow.replace_if_needed("run", channel, [{"run": request}])
    code = request["code"]
    if request.get("install_missing"):
        missing.install_for(code, FILE, channel, request.get("install_ms"))
    module = fresh_main()
    linecache.cache[FILE] = (len(code), None, lines(code), FILE)
    threads.expect(code, warm.state["modules"])
    channel.tell({"begun": {}})
    return module


def fresh_main():
    """A `__main__` as a script has it, except that it comes from no file."""
    module = types.ModuleType("__main__")
    module.__builtins__ = builtins
    sys.modules["__main__"] = module
    shell = results.shell()
    if shell is None:
        builtins.display = results.display
    else:
        shell.attach(module)
    return module


def execute(code, module, channel):
    """Runs the code. Says what to exit with: a number, or None for an interrupt that nobody caught."""
    try:
        results.value(evaluate(code, vars(module)))
        return 0
    except SystemExit as end:
        return exit_status(end)
    except BaseException as error:  # noqa: BLE001
        missing.explain(error)
        caught = error
    if isinstance(caught, MemoryError):
        # What the code held is let go of, so that there is room to say what happened.
        vars(module).clear()
    return report(caught, channel)


def report(error, channel):
    """Tells of an uncaught exception, through the hook of the user if there is one."""
    interrupted = isinstance(error, KeyboardInterrupt)
    hook = None if sys.excepthook is sys.__excepthook__ else sys.excepthook
    try:
        errors.report(error, channel, hook=hook)
    except BaseException:  # noqa: BLE001
        # Never an end without a word.
        with suppress(BaseException):
            os.write(2, type(error).__name__.encode() + b"\n")
    return None if interrupted else 1


def evaluate(code, names):
    """Runs the code and gives the value of its last statement, if that is an expression not ended by a semicolon."""
    tree = compile(code, FILE, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
    last = None
    if tree.body and isinstance(tree.body[-1], ast.Expr) and not ends_quietly(code, tree.body[-1]):
        last = tree.body.pop()
    program = compile(tree, FILE, "exec", dont_inherit=True)
    exec(program, names)  # noqa: S102
    if last is None:
        return None
    expression = ast.Expression(last.value)
    return eval(compile(expression, FILE, "eval", program.co_flags & FUTURE, dont_inherit=True), names)


def lines(code):
    """The lines of the code as Python counts them."""
    return list(io.StringIO(code, newline=None))


def ends_quietly(code, last):
    """Whether a semicolon follows the last expression, as notebooks use it to show nothing."""
    if ";" not in code:
        return False
    rest = lines(code)[last.end_lineno - 1].encode()[last.end_col_offset :]
    return rest.lstrip().startswith(b";")


def exit_status(end):
    """What Python makes of a SystemExit: a number as it is, nothing as zero, all else as a message and one."""
    if end.code is None:
        return 0
    if isinstance(end.code, int):
        return end.code
    print(end.code, file=sys.stderr)
    return 1
