"""Uses a client that openapi-python-client generated from docs/openapi.json, against a real server.

Usage: uses.py URL KEY    with the generated package in the current directory, as `generated`
"""

import json
import sys
import time
from io import BytesIO

from generated import AuthenticatedClient
from generated.api.execs import get_exec, start_exec
from generated.api.files import read_file, write_file
from generated.api.sandboxes import create_sandbox, get_sandbox, stop_sandbox
from generated.models import CreateSandbox, Error, ExecInfo, ExecSpec, OutcomeExited, Sandbox
from generated.types import File

WITHIN = 30

client = AuthenticatedClient(base_url=sys.argv[1], token=sys.argv[2], timeout=WITHIN)
sandbox = create_sandbox.sync(client=client, body=CreateSandbox(template="base"))
assert isinstance(sandbox, Sandbox), sandbox

started = start_exec.sync(sandbox.id, client=client, body=ExecSpec(argv=["sh", "-c", "exit 3"]))
assert isinstance(started, ExecInfo), started
until = time.monotonic() + WITHIN
outcome = None
while outcome is None:
    assert time.monotonic() < until, "the exec does not end"
    info = get_exec.sync(sandbox.id, started.id, client=client)
    assert isinstance(info, ExecInfo), info
    outcome = info.outcome or None
assert isinstance(outcome, OutcomeExited), outcome

body = File(payload=BytesIO(b"written\n"))
write_file.sync_detailed(sandbox.id, client=client, body=body, path="/workspace/note")
content = read_file.sync(sandbox.id, client=client, path="/workspace/note")
assert isinstance(content, File), content

unknown = get_sandbox.sync("unknown", client=client)
assert isinstance(unknown, Error), unknown
stop_sandbox.sync_detailed(sandbox.id, client=client)
print(
    json.dumps(
        {
            "template": sandbox.template,
            "outcome": outcome.code,
            "content": content.payload.read().decode(),
            "error": unknown.code.value,
        }
    )
)
