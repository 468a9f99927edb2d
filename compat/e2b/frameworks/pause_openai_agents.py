"""A session of the OpenAI Agents SDK whose sandbox is paused at its timeout, as the backend asks for by default.

Tells what a counter inside says before and after it; in between it waits to be told to go on.
"""

import asyncio
import io
import json
import sys
from pathlib import Path

from agents.extensions.sandbox.e2b import E2BSandboxClient, E2BSandboxClientOptions
from agents.sandbox.session.sandbox_session import SandboxSession

TIMEOUT_S = 20
"""It has to be enough for what is done before the pause, on a machine under load."""
PROGRAM = Path("count.sh")


async def count(session: SandboxSession) -> str:
    """What the counter has written, as soon as it has."""
    return (await session.exec("until [ -e count ]; do sleep 0.2; done; cat count")).stdout.decode()


async def tell(**seen: str) -> None:
    print(json.dumps(seen), flush=True)
    await asyncio.to_thread(sys.stdin.readline)


async def main() -> None:
    options = E2BSandboxClientOptions(sandbox_type="e2b", timeout=TIMEOUT_S)
    async with await E2BSandboxClient().create(options=options) as session:
        await session.write(PROGRAM, io.BytesIO(sys.argv[1].encode()))
        await session.pty_exec_start(f"sh {PROGRAM}", yield_time_s=0.25)
        await tell(count=await count(session))
        resumed = await count(session)
        await asyncio.sleep(2)
        later = await count(session)
        await tell(count=resumed, later=later, program=(await session.read(PROGRAM)).read().decode())


asyncio.run(main())
