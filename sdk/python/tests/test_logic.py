"""Tests of logic that needs no server: retries, errors, results, and tool calls in messages."""

from __future__ import annotations

import asyncio
import inspect
import json
from types import SimpleNamespace
from typing import Any

import pytest

import bellglass
from bellglass import messages
from bellglass.errors import refused
from bellglass.link import escape
from bellglass.patience import PAUSE_MIN, Attempts, Patience, Trouble
from bellglass.pool import Wiring
from bellglass.transport import run


def test_pauses_grow_to_half_a_second_and_end_at_the_deadline() -> None:
    attempts, now, pauses = Attempts(Patience(connection=2, busy=1)), 0.0, []
    while (pause := attempts.after(Trouble.CONNECTION, None, now)) is not None:
        pauses.append(round(pause * 1000))
        now += pause
    assert pauses == [20, 40, 80, 160, 320, 500, 500]
    attempts.progress()
    assert attempts.after(Trouble.CONNECTION, None, now) == PAUSE_MIN


def test_what_the_server_asks_for_is_waited_for_unless_it_is_too_long() -> None:
    attempts = Attempts(Patience(connection=2, busy=1))
    assert attempts.after(Trouble.BUSY, 1.0, 0.0) == 1.0
    assert attempts.after(Trouble.BUSY, 2.0, 0.0) is None


def test_every_code_has_an_exception_and_an_unknown_one_is_no_accident() -> None:
    error = refused({"code": "quota_exceeded", "message": "full", "fix": "Stop one.", "retry": "safe", "ran": "no"})
    assert isinstance(error, bellglass.QuotaExceeded) and error.retryable and str(error) == "full\nStop one."
    assert refused({"code": "of_next_year", "message": "?"}).code == "of_next_year"
    assert issubclass(bellglass.DeadlineExceeded, TimeoutError) and issubclass(bellglass.ConnectionFailed, ConnectionError)


def test_what_is_in_a_path_cannot_leave_its_place() -> None:
    assert escape("k_1-a") == "k_1-a"
    assert escape("../a?b&c") == "%2E%2E%2Fa%3Fb%26c"


def test_no_proxy_leads_to_this_machine() -> None:
    assert Wiring("http://127.0.0.1:7070").is_here() and Wiring("http://[::1]:1").is_here()
    assert Wiring("http://localhost").is_here() and not Wiring("https://example.org").is_here()


def test_exit_codes_are_those_of_a_shell() -> None:
    kinds = [("exited", 3), ("timeout", 124), ("oom", 137), ("cancelled", 130), ("unknown", 125)]
    assert [bellglass.Outcome(kind, code=3).exit_code for kind, _ in kinds] == [code for _, code in kinds]
    assert bellglass.Outcome("signaled", signal=9).exit_code == 137


def test_both_kinds_of_class_offer_the_same() -> None:
    for name in ("Client", "Sandbox", "Commands", "Exec", "Files", "Contexts", "Terminal", "Terminals", "Session"):
        blocking, loop = getattr(bellglass, name), getattr(bellglass, f"Async{name}")
        offered = {one for one in dir(blocking) if not one.startswith("_")}
        wanted = {one for one in dir(loop) if not one.startswith("_")} - {"open"}
        assert wanted <= offered, (name, wanted - offered)
    assert "timeout" in inspect.signature(bellglass.Sandbox.run_code).parameters
    assert bellglass.Files.read.__doc__ == bellglass.AsyncFiles.read.__doc__


def test_a_blocking_call_that_would_wait_for_a_loop_says_so() -> None:
    with pytest.raises(RuntimeError, match="plain functions"):
        run(asyncio.sleep(0))


CALLS: list[dict[str, Any]] = [
    {"id": "1", "type": "function", "function": {"name": "run", "arguments": '{"code": "1"}'}},
    {"id": "2", "type": "function", "function": {"name": "run", "arguments": '{"code": '}},
    {"id": "3", "type": "function", "function": {"name": "run", "arguments": "[1]"}},
    {"id": "4", "type": "function", "function": {"name": "run", "arguments": ""}},
]


def test_tool_calls_are_found_in_dictionaries_and_in_objects() -> None:
    found = messages.openai_calls({"role": "assistant", "tool_calls": CALLS})
    assert [(one.id, dict(one.parameters), one.wrong is None) for one in found] == [
        ("1", {"code": "1"}, True),
        ("2", {}, False),
        ("3", {}, False),
        ("4", {}, True),
    ]
    function = SimpleNamespace(name="run", arguments='{"code": "1"}')
    message = SimpleNamespace(tool_calls=[SimpleNamespace(id="1", function=function)])
    assert messages.openai_calls(message) == found[:1]
    assert messages.openai_calls(SimpleNamespace(tool_calls=None)) == []
    block = SimpleNamespace(type="tool_use", id="a", name="run", input={"code": "1"})
    found = messages.anthropic_calls(SimpleNamespace(content=[SimpleNamespace(type="text", text="hm"), block]))
    assert [(one.id, one.name, one.parameters) for one in found] == [("a", "run", {"code": "1"})]
    assert messages.anthropic_calls({"content": "no calls"}) == []


def test_pictures_are_blocks_and_not_text() -> None:
    picture = {"name": "a.png", "type": "image/png", "base64": "iVBOR"}
    answer = messages.ToolAnswer({"success": True, "files": [picture, {"name": "b.csv", "type": "text/csv"}]})
    call = messages.ToolCall("1", "run")
    text, image = messages.anthropic_block(call, answer)["content"]
    assert json.loads(text["text"])["files"] == [
        {"name": "a.png", "type": "image/png"},
        {"name": "b.csv", "type": "text/csv"},
    ]
    assert image["source"] == {"type": "base64", "media_type": "image/png", "data": "iVBOR"}
    assert "iVBOR" not in messages.openai_message(call, answer)["content"]


def test_a_mistake_is_told_to_the_model() -> None:
    block = messages.anthropic_block(messages.ToolCall("1", "run"), messages.mistake("no such tool", "Use another."))
    assert block["is_error"] and json.loads(block["content"][0]["text"]) == {"error": "no such tool", "hint": "Use another."}
