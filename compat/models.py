"""A model that follows a script, for programs that believe they talk to a real one.

It speaks OpenAI's chat completions and Anthropic's messages on a port of this machine. A script is a list of turns: what
the model says or calls next, and what it must have heard before. A request that a real model would refuse, or that the
script does not expect, is answered with 500 and the reason, and the reason is kept: `Model.check` tells it to the test.

    with Model([Turn(calls=[Call("add", {"a": 1, "b": 2})]), Turn("It is 3.", expects=heard("3"))], tools) as model:
        subprocess.run([...], env=model.environment())
    model.check()
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

KEY = "the-key-of-a-model"
BODY_BYTES_MAX = 64 << 20
"""More than any request with pictures in it."""
POLL_SECONDS = 0.02
"""How soon it notices that the block has ended."""
PICTURES = {"image/png": b"\x89PNG\r\n\x1a\n", "image/jpeg": b"\xff\xd8\xff"}
"""How the pictures begin that may come back."""


@dataclass(frozen=True)
class Call:
    """A tool that the model calls."""

    name: str
    parameters: Mapping[str, Any] | str
    """A text is sent as it is, where the interface has a text: models do not always write JSON."""


@dataclass(frozen=True)
class Answer:
    """What came of a call, as the model hears it."""

    text: str
    pictures: tuple[bytes, ...] = ()
    failed: bool = False


@dataclass(frozen=True)
class Heard:
    """A request, the same for both interfaces."""

    system: str
    question: str
    answers: tuple[Answer, ...]
    """Those to the calls of the turn before."""


@dataclass(frozen=True)
class Turn:
    """What the model does next."""

    says: str = ""
    calls: Sequence[Call] = ()
    expects: Callable[[Heard], None] = lambda _: None
    """Raises `AssertionError` where the model has not heard what it should have."""


class Interface(Protocol):
    """What differs between the two interfaces."""

    def authorised(self, headers: Mapping[str, str]) -> bool:
        """Whether the key is there."""

    def heard(self, body: dict[str, Any], before: list[Any]) -> Heard:
        """What a request says; `before` are its messages up to and with the last that the model wrote."""

    def message(self, turn: Turn, number: int) -> dict[str, Any]:
        """A turn as a message that the program has to send back with the next request."""

    def response(self, message: dict[str, Any], model: str) -> dict[str, Any]:
        """That message as a whole response."""

    def plain(self, message: Mapping[str, Any]) -> Any:
        """A message without what programs may leave out, add or write differently."""


class ChatCompletions:
    """OpenAI's."""

    def authorised(self, headers: Mapping[str, str]) -> bool:
        return headers.get("authorization") == f"Bearer {KEY}"

    def heard(self, body: dict[str, Any], before: list[Any]) -> Heard:
        messages = body["messages"]
        assert [one["role"] for one in messages[:2]] == ["system", "user"], "the first two are `system` and `user`"
        calls = before[-1].get("tool_calls") or [] if before else []
        new = messages[len(before) :] if before else []
        answered = [one.get("tool_call_id") for one in new]
        assert answered == [one["id"] for one in calls], "each call has one answer, in order"
        assert all(one["role"] == "tool" for one in new), "answers to calls have the role `tool`"
        answers = tuple(Answer(_text(one["content"])) for one in new)
        return Heard(_text(messages[0]["content"]), _text(messages[1]["content"]), answers)

    def message(self, turn: Turn, number: int) -> dict[str, Any]:
        calls = [
            {
                "id": f"call_{number}_{index}",
                "type": "function",
                "function": {"name": call.name, "arguments": _json(call.parameters)},
            }
            for index, call in enumerate(turn.calls)
        ]
        return {"role": "assistant", "content": turn.says or None, **({"tool_calls": calls} if calls else {})}

    def response(self, message: dict[str, Any], model: str) -> dict[str, Any]:
        why = "tool_calls" if "tool_calls" in message else "stop"
        choice = {"index": 0, "message": {"refusal": None, **message}, "finish_reason": why, "logprobs": None}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        return {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 0,
            "model": model,
            "choices": [choice],
            "usage": usage,
        }

    def plain(self, message: Mapping[str, Any]) -> Any:
        calls = [
            (one["id"], one["function"]["name"], _parsed(one["function"]["arguments"]))
            for one in message.get("tool_calls") or ()
        ]
        return message["role"], _text(message.get("content")), calls, message.get("tool_call_id")


class Messages:
    """Anthropic's."""

    def authorised(self, headers: Mapping[str, str]) -> bool:
        # Which of the two it is depends on the version of the package.
        shown = headers.get("x-api-key") == KEY or headers.get("authorization") == f"Bearer {KEY}"
        return shown and "anthropic-version" in headers

    def heard(self, body: dict[str, Any], before: list[Any]) -> Heard:
        messages = body["messages"]
        assert isinstance(body.get("max_tokens"), int), "`max_tokens` is there"
        roles = [one["role"] for one in messages]
        assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"], "`user` and `assistant` take turns"
        calls = [one for one in before[-1]["content"] if one["type"] == "tool_use"] if before else []
        blocks = messages[-1]["content"] if before else []
        answered = [one.get("tool_use_id") for one in blocks]
        assert answered == [one["id"] for one in calls], "each call has one answer, in order"
        return Heard(_text(body["system"]), _text(messages[0]["content"]), tuple(self._answer(one) for one in blocks))

    def message(self, turn: Turn, number: int) -> dict[str, Any]:
        content: list[dict[str, Any]] = [{"type": "text", "text": turn.says}] if turn.says else []
        for index, call in enumerate(turn.calls):
            identity = f"toolu_{number}_{index}"
            content.append({"type": "tool_use", "id": identity, "name": call.name, "input": call.parameters})
        return {"role": "assistant", "content": content}

    def response(self, message: dict[str, Any], model: str) -> dict[str, Any]:
        calls = any(one["type"] == "tool_use" for one in message["content"])
        return {
            "id": "msg_1",
            "type": "message",
            "model": model,
            "stop_reason": "tool_use" if calls else "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": 1, "output_tokens": 1},
            **message,
        }

    def plain(self, message: Mapping[str, Any]) -> Any:
        content = message["content"]
        if isinstance(content, str):
            return message["role"], content
        kept = ("type", "text", "id", "name", "input", "tool_use_id", "content")
        return message["role"], [{name: one[name] for name in kept if name in one} for one in content]

    def _answer(self, block: Mapping[str, Any]) -> Answer:
        assert block["type"] == "tool_result", "answers to calls are blocks of type `tool_result`"
        parts = block["content"] if isinstance(block["content"], list) else []
        pictures = tuple(_picture(part["source"]) for part in parts if part["type"] == "image")
        return Answer(_text(block["content"]), pictures, bool(block.get("is_error")))


class Model:
    """A server on a port of this machine, until the block ends."""

    INTERFACES: Mapping[str, Interface] = {"/v1/chat/completions": ChatCompletions(), "/v1/messages": Messages()}

    def __init__(self, script: Sequence[Turn], tools: Sequence[Mapping[str, Any]]) -> None:
        """`tools` are the definitions that each request must carry, exactly."""
        self._script, self._tools = script, list(tools)
        self._turn = 0
        self._before: list[Any] = []
        self._lock = threading.Lock()
        #: Why requests were refused.
        self.faults: list[str] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(POLL_SECONDS,), daemon=True)

    def __enter__(self) -> Model:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def environment(self) -> dict[str, str]:
        """What the official packages read."""
        url = f"http://127.0.0.1:{self._server.server_port}"
        return {
            "OPENAI_BASE_URL": f"{url}/v1",
            "OPENAI_API_KEY": KEY,
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_API_KEY": KEY,
        }

    def check(self) -> None:
        """The script was followed, to its end."""
        assert not self.faults, "\n".join(self.faults)
        assert self._turn == len(self._script), f"the script has {len(self._script)} turns, {self._turn} were asked for"

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        model = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(min(int(self.headers.get("content-length", 0)), BODY_BYTES_MAX))
                headers = {name.lower(): value for name, value in self.headers.items()}
                try:
                    status, answer = 200, model._next(self.path.partition("?")[0], headers, body)
                except Exception as fault:
                    why = f"{type(fault).__name__}: {fault}"
                    model.faults.append(f"turn {model._turn + 1}, {self.path}: {why}")
                    status, answer = 500, {"type": "error", "error": {"type": "script", "message": why}}
                text = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(text)))
                # The packages ask again after 500 unless they are told not to.
                self.send_header("x-should-retry", "false")
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, format: str, *args: Any) -> None:
                """Says nothing: what went wrong is in `faults`."""

        return Handler

    def _next(self, path: str, headers: Mapping[str, str], raw: bytes) -> dict[str, Any]:
        with self._lock:
            interface = self.INTERFACES.get(path)
            assert interface is not None, "this model has no such path"
            assert interface.authorised(headers), "the key is missing or wrong"
            body = json.loads(raw)
            assert not body.get("stream"), "this model does not stream"
            assert body.get("tools") == self._tools, f"the tools are not those of the set: {json.dumps(body.get('tools'))}"
            assert self._turn < len(self._script), "the script is over"
            turn = self._script[self._turn]
            sent = [interface.plain(one) for one in body["messages"]]
            known = [interface.plain(one) for one in self._before]
            assert sent[: len(known)] == known, f"the conversation was changed: {sent[: len(known)]} instead of {known}"
            turn.expects(interface.heard(body, self._before))
            message = interface.message(turn, self._turn)
            self._before = [*body["messages"], message]
            self._turn += 1
            return interface.response(message, str(body["model"]))


def heard(*texts: str, pictures: int = 0, failed: bool = False) -> Callable[[Heard], None]:
    """Expects that the answers to the last calls hold these texts and so many pictures, and how they ended."""

    def expects(heard: Heard) -> None:
        said = "\n".join(answer.text for answer in heard.answers)
        missing = [text for text in texts if text not in said]
        assert not missing, f"{missing} is not in {said!r}"
        shown = sum(len(answer.pictures) for answer in heard.answers)
        assert shown == pictures, f"{shown} pictures instead of {pictures}"
        assert all(answer.failed is failed for answer in heard.answers), f"`is_error` is not {failed} in {heard.answers}"

    return expects


def told(*, system: str, question: str) -> Callable[[Heard], None]:
    """Expects that the model was told this in the beginning."""

    def expects(heard: Heard) -> None:
        assert system in heard.system, f"{system!r} is not in {heard.system!r}"
        assert question in heard.question, f"{question!r} is not in {heard.question!r}"

    return expects


def _json(parameters: Mapping[str, Any] | str) -> str:
    return parameters if isinstance(parameters, str) else json.dumps(parameters)


def _parsed(arguments: str) -> Any:
    """Programs may write JSON anew, with other spaces."""
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


def _text(content: Any) -> str:
    """The text of a message, which is one text or has several parts."""
    if isinstance(content, list):
        return "".join(part["text"] for part in content if part["type"] == "text")
    return content or ""


def _picture(source: Mapping[str, str]) -> bytes:
    assert source["type"] == "base64", "pictures come in base64"
    data = base64.b64decode(source["data"], validate=True)
    assert data.startswith(PICTURES[source["media_type"]]), f"this is no {source['media_type']}"
    return data
