"""An agent whose tools come from Belljar's MCP endpoint: nothing of Belljar's own is installed here.

python mcp_client.py "How many days are there between 1 March 1900 and today?"
"""

import asyncio
import json
import os
import sys
from typing import Any

import httpx2
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from openai import AsyncOpenAI

MODEL = "gpt-5.4"
TURNS_MAX = 20
"""A model that has not answered by then goes round in circles."""
TOOL_SECONDS_MAX = 660
"""Packages may take 300 s to install and a script 300 s to run."""


async def answer(question: str) -> str:
    endpoint = os.environ.get("BELLJAR_SERVER", "http://127.0.0.1:7070").rstrip("/") + "/mcp?set=python"
    headers = {"authorization": f"Bearer {os.environ['BELLJAR_KEY']}"}
    timeout = httpx2.Timeout(30, read=TOOL_SECONDS_MAX)
    async with (
        AsyncOpenAI() as model,
        httpx2.AsyncClient(headers=headers, timeout=timeout) as http,
        # The server makes a session at the first call and ends it when this client leaves.
        Client(streamable_http_client(endpoint, http_client=http)) as belljar,
    ):
        tools = [
            {"type": "function", "function": {"name": t.name, "description": t.description, "parameters": t.input_schema}}
            for t in (await belljar.list_tools()).tools
        ]
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": belljar.instructions or ""},
            {"role": "user", "content": question},
        ]
        for _ in range(TURNS_MAX):
            completion = await model.chat.completions.create(model=MODEL, messages=messages, tools=tools)
            message = completion.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                return message.content or ""
            for asked in message.tool_calls:
                content = await called(belljar, asked.function.name, asked.function.arguments)
                messages.append({"role": "tool", "tool_call_id": asked.id, "content": content})
    raise SystemExit(f"no answer after {TURNS_MAX} turns")


async def called(belljar: Client, name: str, arguments: str) -> str:
    """What a tool says. What goes wrong is told to the model, which can mend it."""
    try:
        result = await belljar.call_tool(name, json.loads(arguments or "{}"))
    except (ValueError, MCPError) as error:
        return f"Error: {error}"
    return "\n".join(block.text for block in result.content if block.type == "text")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: mcp_client.py QUESTION")
    print(asyncio.run(answer(sys.argv[1])))
