"""Parse tool calls in OpenAI and Anthropic messages, and format the replies. No server is contacted here."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ToolCall:
    """A tool call requested by a model."""

    id: str
    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    wrong: str | None = None
    """Why the call is malformed, or `None` if it is valid."""


@dataclass(frozen=True)
class ToolAnswer:
    """The reply to a tool call."""

    result: Mapping[str, Any]
    failed: bool = False
    """Whether the call itself failed. Code that ran and failed is an ordinary result."""


def mistake(message: str, hint: str) -> ToolAnswer:
    """Return an error reply with a hint for the model."""
    return ToolAnswer({"error": message, **({"hint": hint} if hint else {})}, failed=True)


def openai_calls(message: Any) -> list[ToolCall]:
    """Return the tool calls of an OpenAI assistant message."""
    calls = []
    for asked in _items(_of(message, "tool_calls")):
        function = _of(asked, "function")
        identity, name = str(_of(asked, "id") or ""), str(_of(function, "name") or "")
        calls.append(_call(identity, name, _of(function, "arguments")))
    return calls


def openai_message(asked: ToolCall, answer: ToolAnswer) -> dict[str, Any]:
    """Return the reply to a tool call as an OpenAI message."""
    return {"role": "tool", "tool_call_id": asked.id, "content": json.dumps(_split(answer.result)[0])}


def anthropic_calls(message: Any) -> list[ToolCall]:
    """Return the tool calls of an Anthropic assistant message."""
    blocks = [block for block in _items(_of(message, "content")) if _of(block, "type") == "tool_use"]
    return [_call(str(_of(block, "id") or ""), str(_of(block, "name") or ""), _of(block, "input")) for block in blocks]


def anthropic_block(asked: ToolCall, answer: ToolAnswer) -> dict[str, Any]:
    """Return the reply to a tool call as an Anthropic `tool_result` block."""
    text, pictures = _split(answer.result)
    content: list[dict[str, Any]] = [{"type": "text", "text": json.dumps(text)}]
    for kind, data in pictures:
        content.append({"type": "image", "source": {"type": "base64", "media_type": kind, "data": data}})
    block: dict[str, Any] = {"type": "tool_result", "tool_use_id": asked.id, "content": content}
    if answer.failed:
        block["is_error"] = True
    return block


def _call(id: str, name: str, arguments: Any) -> ToolCall:
    """Build a call whose arguments are an object or its JSON text; missing arguments mean an empty object."""
    if isinstance(arguments, (str, bytes)):
        try:
            arguments = json.loads(arguments or "{}")
        except ValueError as error:
            return ToolCall(id, name, wrong=f"the arguments of {name} are not valid JSON: {error}")
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, Mapping):
        return ToolCall(id, name, wrong=f"the arguments of {name} are not a JSON object")
    return ToolCall(id, name, arguments)


def _split(result: Mapping[str, Any]) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Split a result into text and images. As base64 text, an image would use thousands of tokens without being useful."""
    files, pictures = [], []
    for one in _items(result.get("files")):
        data = _of(one, "base64")
        if isinstance(data, str):
            pictures.append((str(one.get("type", "image/png")), data))
        files.append({name: value for name, value in one.items() if name != "base64"})
    return {**result, "files": files} if files else dict(result), pictures


def _of(thing: Any, name: str) -> Any:
    """Return a field of a dictionary or an attribute of an object, because messages can have either form."""
    return thing.get(name) if isinstance(thing, Mapping) else getattr(thing, name, None)


def _items(things: Any) -> Iterable[Any]:
    return things if isinstance(things, (list, tuple)) else ()
