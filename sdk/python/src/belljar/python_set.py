"""The tool set `python` as two functions, over one session of the process. Safe from many threads."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from .client import Default
from .errors import BelljarError, Conflict, ConnectionFailed, NotFound
from .local_server import NoServer
from .sync import Session

NO_BACKEND = "Failed to initialize sandbox engine: Failed to initialize any sandbox backend (Daytona or Docker)"
_log = logging.getLogger("belljar")
# Of one process only: a child that was forked begins its own.
_session: Default[Session] = Default(inherited=False)


def execute_python(script: str, requirements: Sequence[str] | None = None) -> dict[str, Any]:
    """Runs a script in a fresh process of the sandbox, whose files and packages stay from one call to the next.

    The result has `exit_code`, `stdout` and `stderr`, also where the script could not be started; `stdout_truncated` and
    `stderr_truncated` are there when they are true.
    """
    parameters: dict[str, Any] = {"script": script}
    if requirements:
        parameters["requirements"] = [requirements] if isinstance(requirements, str) else [*requirements]
    try:
        result = _call(parameters)
    except TypeError as error:
        return _failed(f"the script or its requirements are no text: {error}")
    except BelljarError as error:
        if isinstance(error, (ConnectionFailed, NoServer)) or error.code == "tier_unavailable":
            _log.warning("no sandbox could be had: %s", error)
            return _failed(NO_BACKEND)
        return _failed(str(error))
    flags = {name: True for name in ("stdout_truncated", "stderr_truncated") if result.get(name)}
    return {name: result[name] for name in ("exit_code", "stdout", "stderr")} | flags


def cleanup_sandbox() -> bool:
    """Releases the sandbox, after the run in progress. The next call makes a new one. Says whether it worked; a failure is
    logged and harms nothing."""
    session = _session.made
    if session is None:
        return True
    try:
        session.cleanup()
    except NotFound:
        _session.forget()
    except BelljarError as error:
        _log.warning("the sandbox could not be released: %s", error)
        return False
    return True


def _call(parameters: dict[str, Any]) -> dict[str, Any]:
    session = _session.get(_begin)
    try:
        return session.call_tool("execute_python", parameters)
    except (NotFound, Conflict):
        # The session was ended by somebody else, or with its server's data: its files are gone, and a new one begins.
        _session.forget()
        return _session.get(_begin).call_tool("execute_python", parameters)


def _begin() -> Session:
    return Session.create("python")


def _failed(why: str) -> dict[str, Any]:
    return {"exit_code": 1, "stdout": "", "stderr": why}
