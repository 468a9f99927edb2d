"""The scripted model itself: what it does not expect it refuses, and says so."""

from __future__ import annotations

import httpx
import pytest
from models import KEY, Call, Model, Turn, heard

TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
BEGIN = [{"role": "system", "content": "Add."}, {"role": "user", "content": "1 + 2"}]
SCRIPT = [Turn(calls=[Call("add", {"a": 1, "b": 2})]), Turn("3", expects=heard("the sum is 3"))]


def ask(model: Model, messages: list[dict[str, object]], tools: object = TOOLS, key: str = KEY) -> httpx.Response:
    url = model.environment()["OPENAI_BASE_URL"] + "/chat/completions"
    body = {"model": "m", "messages": messages, "tools": tools}
    return httpx.post(url, json=body, headers={"authorization": f"Bearer {key}"}, trust_env=False)


def test_a_script_that_was_followed_passes() -> None:
    with Model(SCRIPT, TOOLS) as model:
        message = ask(model, BEGIN).json()["choices"][0]["message"]
        answer = {"role": "tool", "tool_call_id": "call_0_0", "content": "the sum is 3"}
        assert ask(model, [*BEGIN, message, answer]).json()["choices"][0]["finish_reason"] == "stop"
        model.check()
        assert ask(model, BEGIN).status_code == 500
    with pytest.raises(AssertionError, match="the script is over"):
        model.check()


@pytest.mark.parametrize(
    ("messages", "options", "why"),
    [
        (BEGIN, {"tools": []}, "the tools are not those of the set"),
        (BEGIN, {"key": "other"}, "the key is missing or wrong"),
        (BEGIN[1:], {}, "the first two are `system` and `user`"),
    ],
)
def test_a_first_request_that_is_wrong_is_refused(messages: list, options: dict, why: str) -> None:
    with Model(SCRIPT, TOOLS) as model:
        refused = ask(model, messages, **options)
    assert refused.status_code == 500 and why in refused.json()["error"]["message"]
    with pytest.raises(AssertionError, match=why):
        model.check()


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({"role": "tool", "tool_call_id": "call_0_0", "content": "the sum is 4"}, "is not in 'the sum is 4'"),
        ({"role": "tool", "tool_call_id": "call_0_1", "content": "the sum is 3"}, "each call has one answer"),
        ({"role": "user", "content": "the sum is 3"}, "each call has one answer"),
    ],
)
def test_an_answer_that_is_wrong_is_refused(answer: dict, why: str) -> None:
    with Model(SCRIPT, TOOLS) as model:
        message = ask(model, BEGIN).json()["choices"][0]["message"]
        refused = ask(model, [*BEGIN, message, answer])
    assert refused.status_code == 500 and why in refused.json()["error"]["message"]


def test_a_conversation_that_was_changed_is_refused() -> None:
    with Model(SCRIPT, TOOLS) as model:
        message = ask(model, BEGIN).json()["choices"][0]["message"]
        message["tool_calls"][0]["function"]["arguments"] = "{}"
        answer = {"role": "tool", "tool_call_id": "call_0_0", "content": "the sum is 3"}
        assert "the conversation was changed" in ask(model, [*BEGIN, message, answer]).text


def test_a_script_that_was_left_early_is_told() -> None:
    with Model(SCRIPT, TOOLS) as model:
        ask(model, BEGIN)
    with pytest.raises(AssertionError, match="2 turns, 1 were asked for"):
        model.check()
