"""Tool calls in messages of OpenAI and Anthropic, and the answers to them. Pure: nothing is asked of a server here."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ToolCall:
    """What a model asks for."""

    id: str
    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    wrong: str | None = None
    """What is wrong with it, where it is none that can be made."""


@dataclass(frozen=True)
class ToolAnswer:
    """What came of it."""

    result: Mapping[str, Any]
    failed: bool = False
    """Whether the call could not be made. Code that ran and failed is a result like any other."""


def mistake(message: str, hint: str) -> ToolAnswer:
    """An answer from which a model can see what to do instead."""
    return ToolAnswer({"error": message, **({"hint": hint} if hint else {})}, failed=True)


def openai_calls(message: Any) -> list[ToolCall]:
    """The tool calls of an assistant's message of OpenAI's."""
    calls = []
    for asked in _items(_of(message, "tool_calls")):
        function = _of(asked, "function")
        identity, name = str(_of(asked, "id") or ""), str(_of(function, "name") or "")
        calls.append(_call(identity, name, _of(function, "arguments")))
    return calls


def openai_message(asked: ToolCall, answer: ToolAnswer) -> dict[str, Any]:
    """The answer to one, as a message."""
    return {"role": "tool", "tool_call_id": asked.id, "content": json.dumps(_split(answer.result)[0])}


def anthropic_calls(message: Any) -> list[ToolCall]:
    """The tool calls of an assistant's message of Anthropic's."""
    blocks = [block for block in _items(_of(message, "content")) if _of(block, "type") == "tool_use"]
    return [_call(str(_of(block, "id") or ""), str(_of(block, "name") or ""), _of(block, "input")) for block in blocks]


def anthropic_block(asked: ToolCall, answer: ToolAnswer) -> dict[str, Any]:
    """The answer to one, as a block."""
    text, pictures = _split(answer.result)
    content: list[dict[str, Any]] = [{"type": "text", "text": json.dumps(text)}]
    for kind, data in pictures:
        content.append({"type": "image", "source": {"type": "base64", "media_type": kind, "data": data}})
    block: dict[str, Any] = {"type": "tool_result", "tool_use_id": asked.id, "content": content}
    if answer.failed:
        block["is_error"] = True
    return block


def _call(id: str, name: str, arguments: Any) -> ToolCall:
    """A call whose parameters are an object, or the text of one; nothing means none."""
    if isinstance(arguments, (str, bytes)):
        try:
            arguments = json.loads(arguments or "{}")
        except ValueError as error:
            return ToolCall(id, name, wrong=f"the arguments of {name} are no JSON: {error}")
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, Mapping):
        return ToolCall(id, name, wrong=f"the arguments of {name} are no JSON object")
    return ToolCall(id, name, arguments)


def _split(result: Mapping[str, Any]) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """A result without its pictures, and these. As text, a picture is thousands of tokens that say nothing."""
    files, pictures = [], []
    for one in _items(result.get("files")):
        data = _of(one, "base64")
        if isinstance(data, str):
            pictures.append((str(one.get("type", "image/png")), data))
        files.append({name: value for name, value in one.items() if name != "base64"})
    return {**result, "files": files} if files else dict(result), pictures


def _of(thing: Any, name: str) -> Any:
    """A field of a dictionary, or an attribute of an object: packages have one or the other."""
    return thing.get(name) if isinstance(thing, Mapping) else getattr(thing, name, None)


def _items(things: Any) -> Iterable[Any]:
    return things if isinstance(things, (list, tuple)) else ()
