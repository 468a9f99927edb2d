"""An agent of Pydantic AI with the sandbox of its harness, which is paused at its timeout between two runs.

Tells what a counter inside says in each of them; after each it waits to be told to go on.
"""

import asyncio
import json
import sys

from pydantic_ai import Agent, RunContext
from pydantic_ai.models.test import TestModel
from pydantic_ai.workspaces import Workspace
from pydantic_ai_harness.e2b_sandbox import E2BSandbox

TIMEOUT_S = 20
"""It has to be enough for what is done before the pause, on a machine under load."""
PROGRAM = "count.sh"

sandbox = E2BSandbox(sandbox_timeout=TIMEOUT_S)
agent = Agent(capabilities=[sandbox])


async def count(workspace: Workspace) -> str:
    """What the counter has written, as soon as it has."""
    return (await workspace.run("until [ -e count ]; do sleep 0.2; done; cat count", shell=True)).stdout


@agent.tool
async def begin(ctx: RunContext) -> dict[str, str]:
    await ctx.workspace.write_text(PROGRAM, sys.argv[1])
    await ctx.workspace.run(f"setsid sh {PROGRAM} < /dev/null > /dev/null 2>&1 &", shell=True)
    return {"count": await count(ctx.workspace)}


@agent.tool
async def go_on(ctx: RunContext) -> dict[str, str]:
    resumed = await count(ctx.workspace)
    await asyncio.sleep(2)
    return {"count": resumed, "later": await count(ctx.workspace), "program": await ctx.workspace.read_text(PROGRAM)}


async def tell(output: str) -> None:
    # This model answers with what the tools returned.
    [returned] = json.loads(output).values()
    print(json.dumps(returned), flush=True)
    await asyncio.to_thread(sys.stdin.readline)


async def main() -> None:
    first = await agent.run("Begin.", model=TestModel(call_tools=["begin"]))
    ref = first.workspace.ref
    assert ref is not None
    try:
        await tell(first.output)
        second = await agent.run("Go on.", model=TestModel(call_tools=["go_on"]), workspace=ref)
        await tell(second.output)
    finally:
        await sandbox.destroy(ref)


asyncio.run(main())
