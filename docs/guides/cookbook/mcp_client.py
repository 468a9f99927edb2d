"""An agent that gets its tools from Bellglass's MCP endpoint. It needs no Bellglass package.

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
"""A model that has not answered after this many turns is probably not making progress."""
TOOL_SECONDS_MAX = 660
"""Installing packages may take 300 s, and running a script another 300 s."""


async def answer(question: str) -> str:
    endpoint = os.environ.get("BELLGLASS_SERVER", "http://127.0.0.1:7070").rstrip("/") + "/mcp?set=python"
    headers = {"authorization": f"Bearer {os.environ['BELLGLASS_API_KEY']}"}
    timeout = httpx2.Timeout(30, read=TOOL_SECONDS_MAX)
    async with (
        AsyncOpenAI() as model,
        httpx2.AsyncClient(headers=headers, timeout=timeout) as http,
        # The server creates a session at the first call and ends it when this client disconnects.
        Client(streamable_http_client(endpoint, http_client=http)) as bellglass,
    ):
        tools = [
            {"type": "function", "function": {"name": t.name, "description": t.description, "parameters": t.input_schema}}
            for t in (await bellglass.list_tools()).tools
        ]
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": bellglass.instructions or ""},
            {"role": "user", "content": question},
        ]
        for _ in range(TURNS_MAX):
            completion = await model.chat.completions.create(model=MODEL, messages=messages, tools=tools)
            message = completion.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                return message.content or ""
            for asked in message.tool_calls:
                content = await called(bellglass, asked.function.name, asked.function.arguments)
                messages.append({"role": "tool", "tool_call_id": asked.id, "content": content})
    raise SystemExit(f"no answer after {TURNS_MAX} turns")


async def called(bellglass: Client, name: str, arguments: str) -> str:
    """Calls a tool and returns its result as text. Errors are returned too, so that the model can correct its call."""
    try:
        result = await bellglass.call_tool(name, json.loads(arguments or "{}"))
    except (ValueError, MCPError) as error:
        return f"Error: {error}"
    return "\n".join(block.text for block in result.content if block.type == "text")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: mcp_client.py QUESTION")
    print(asyncio.run(answer(sys.argv[1])))
