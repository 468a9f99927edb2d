"""The official Python client of MCP against a server: one JSON object per step of a plan, on standard output.

    client.py --plan plan.json --url http://127.0.0.1:8080/mcp --key KEY
    client.py --plan plan.json -- bellglass mcp

A plan is a list of steps. Each does one thing:

    {"do": "tools"}                                         names of the tools
    {"do": "call", "tool": "echo", "arguments": {}}         a call; with "progress": true, also what was told meanwhile
    {"do": "cancel", "tool": "slow", "after": 0.5}          a call that is given up
    {"do": "resources"}                                     the resources that are listed
    {"do": "read", "uri": "bellglass://artifacts/data.csv"}   one of them
    {"do": "sleep", "seconds": 1}

It works with version 2 of the package `mcp` and with version 1. The exit code is 1 if a step could not be done.
"""

import argparse
import asyncio
import json
import os
import sys
import time
from contextlib import asynccontextmanager

import mcp
from mcp.client.stdio import stdio_client

NEW = hasattr(mcp, "Client")


def plain(model):
    return model.model_dump(by_alias=True, mode="json", exclude_none=True)


def shown(result):
    """A result of a call, without the bytes of its images."""
    result = plain(result)
    for block in result.get("content", []):
        if block["type"] == "image":
            block["data"] = f"<{len(block['data'])} characters>"
    return result


class Told:
    """What the server says without being asked."""

    def __init__(self):
        self.methods = []

    async def __call__(self, message):
        message = getattr(message, "root", message)
        method = getattr(message, "method", None)
        if method:
            self.methods.append(method)


@asynccontextmanager
async def transport(options):
    if options.command:
        parameters = mcp.StdioServerParameters(
            command=options.command[0], args=options.command[1:], env=dict(os.environ)
        )
        async with stdio_client(parameters) as streams:
            yield streams
        return
    headers = {"Authorization": f"Bearer {options.key}"} if options.key else {}
    if NEW:
        import httpx2
        from mcp.client.streamable_http import streamable_http_client

        timeout = httpx2.Timeout(30, read=300)
        async with httpx2.AsyncClient(headers=headers, timeout=timeout) as http:
            async with streamable_http_client(options.url, http_client=http) as streams:
                yield streams
    else:
        from mcp.client.streamable_http import streamablehttp_client

        async with streamablehttp_client(options.url, headers=headers) as streams:
            yield streams[:2]


@asynccontextmanager
async def connected(options, told):
    """A client after its first words, and what the server said of itself."""
    if NEW:
        async with mcp.Client(transport(options), mode=options.mode, message_handler=told) as client:
            yield client, {
                "version": client.protocol_version,
                "server": plain(client.server_info),
                "instructions": client.instructions,
            }
    else:
        async with transport(options) as (read, write):
            async with mcp.ClientSession(read, write, message_handler=told) as session:
                hello = await session.initialize()
                yield session, {
                    "version": hello.protocolVersion,
                    "server": plain(hello.serverInfo),
                    "instructions": hello.instructions,
                }


async def call(client, step):
    progress = []

    async def hear(number, total, message):
        progress.append({"at": round(time.monotonic() - began, 2), "progress": number, "message": message})

    began = time.monotonic()
    hearing = {"progress_callback": hear} if step.get("progress") else {}
    result = await client.call_tool(step["tool"], step.get("arguments", {}), **hearing)
    report = {"seconds": round(time.monotonic() - began, 2), "result": shown(result)}
    if step.get("progress"):
        report["progress"] = {"count": len(progress), "first": progress[:2], "last": progress[-1:]}
    return report


async def cancel(client, step):
    task = asyncio.ensure_future(client.call_tool(step["tool"], step.get("arguments", {})))
    await asyncio.sleep(step.get("after", 0.5))
    if task.done():
        return {"cancelled": False, "result": shown(task.result())}
    if not NEW:
        # Version 1 does not tell the server by itself.
        from mcp.types import CancelledNotification, CancelledNotificationParams, ClientNotification

        params = CancelledNotificationParams(requestId=client._request_id - 1, reason="the test gave up")
        notification = CancelledNotification(method="notifications/cancelled", params=params)
        await client.send_notification(ClientNotification(notification))
    task.cancel()
    await asyncio.wait([task])
    return {"cancelled": True}


async def do(client, step):
    match step["do"]:
        case "tools":
            return {"tools": [tool.name for tool in (await client.list_tools()).tools]}
        case "call":
            return await call(client, step)
        case "cancel":
            return await cancel(client, step)
        case "resources":
            return {"resources": plain(await client.list_resources())["resources"]}
        case "read":
            return {"contents": plain(await client.read_resource(step["uri"]))["contents"]}
        case "sleep":
            await asyncio.sleep(step["seconds"])
            return {}
        case other:
            raise ValueError(f"no step does {other!r}")


def say(report):
    print(json.dumps(report, ensure_ascii=False), flush=True)


async def main(options):
    with open(options.plan, encoding="utf-8") as file:
        plan = json.load(file)
    told, failed = Told(), False
    async with connected(options, told) as (client, hello):
        say({"step": "connect", **hello})
        for step in plan:
            told.methods.clear()
            report = {"step": step}
            try:
                report |= await do(client, step)
            except Exception as error:  # What a server refuses is a result, too.
                code = getattr(getattr(error, "error", None), "code", None)
                report |= {"error": {"type": type(error).__name__, "code": code, "message": str(error)}}
            failed |= ("error" in report) != bool(step.get("fails"))
            if told.methods:
                report["told"] = {method: told.methods.count(method) for method in told.methods}
            say(report)
    say({"step": "disconnect"})
    return int(failed)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--plan", required=True)
    parser.add_argument("--url")
    parser.add_argument("--key")
    parser.add_argument("--mode", default="auto", help="of version 2: auto or legacy")
    parser.add_argument("command", nargs="*")
    sys.exit(asyncio.run(main(parser.parse_args())))
