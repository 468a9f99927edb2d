"""The `python` tool set as two functions that share one session per process. Thread-safe."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from .client import Default
from .errors import BellglassError, Conflict, ConnectionFailed, NotFound
from .local_server import NoServer
from .sync import Session

NO_BACKEND = "Failed to initialize sandbox engine: Failed to initialize any sandbox backend (Daytona or Docker)"
_log = logging.getLogger("bellglass")
# Not inherited: a forked child starts its own session.
_session: Default[Session] = Default(inherited=False)


def execute_python(script: str, requirements: Sequence[str] | None = None) -> dict[str, Any]:
    """Run a script in a new process in the sandbox. Files and installed packages persist between calls.

    Never raises for a failed run: the result always has `exit_code`, `stdout` and `stderr`, even if the script could
    not be started. `stdout_truncated` and `stderr_truncated` are present only when true.
    """
    parameters: dict[str, Any] = {"script": script}
    if requirements:
        parameters["requirements"] = [requirements] if isinstance(requirements, str) else [*requirements]
    try:
        result = _call(parameters)
    except TypeError as error:
        return _failed(f"the script or its requirements are not text: {error}")
    except BellglassError as error:
        if isinstance(error, (ConnectionFailed, NoServer)) or error.code == "tier_unavailable":
            _log.warning("no sandbox is available: %s", error)
            return _failed(NO_BACKEND)
        return _failed(str(error))
    flags = {name: True for name in ("stdout_truncated", "stderr_truncated") if result.get(name)}
    return {name: result[name] for name in ("exit_code", "stdout", "stderr")} | flags


def cleanup_sandbox() -> bool:
    """Release the sandbox when the current run has ended. The next run creates a new sandbox.

    Returns whether the release succeeded. A failure is logged and never raised.
    """
    session = _session.made
    if session is None:
        return True
    try:
        session.cleanup()
    except NotFound:
        _session.forget()
    except BellglassError as error:
        _log.warning("cannot release the sandbox: %s", error)
        return False
    return True


def _call(parameters: dict[str, Any]) -> dict[str, Any]:
    session = _session.get(_begin)
    try:
        return session.call_tool("execute_python", parameters)
    except (NotFound, Conflict):
        # The session was ended elsewhere, or lost with the server's data. Its files are gone; start a new session.
        _session.forget()
        return _session.get(_begin).call_tool("execute_python", parameters)


def _begin() -> Session:
    return Session.create("python")


def _failed(why: str) -> dict[str, Any]:
    return {"exit_code": 1, "stdout": "", "stderr": why}
