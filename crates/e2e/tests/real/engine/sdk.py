"""Daytona's published SDK for Python, unmodified, against a server of its API: `python3 sdk.py API_URL KEY SNAPSHOT`.

What it accepts here is what it accepts of Daytona itself. The last line is `ok`.
"""
import contextlib, os, sys, uuid

from daytona import CreateSandboxFromSnapshotParams, Daytona, DaytonaConfig, DaytonaError, ListSandboxesQuery
from daytona.common.errors import (
    DaytonaAuthenticationError, DaytonaBadRequestError, DaytonaConflictError, DaytonaNotFoundError, DaytonaTimeoutError,
)
from daytona.common.pty import PtySize

URL, KEY, SNAPSHOT = sys.argv[1:]
MARK = {"sdk-test": uuid.uuid4().hex}


@contextlib.contextmanager
def refused(kind, says=""):
    try:
        yield
    except kind as error:
        assert says in str(error), error
    else:
        raise AssertionError(f"{kind.__name__} was expected")


def client(key):
    return Daytona(DaytonaConfig(api_key=key, api_url=URL, target="us"))


def listed(daytona, **query):
    return [sandbox.id for sandbox in daytona.list(ListSandboxesQuery(labels=MARK, **query))]


def wishes(**more):
    return CreateSandboxFromSnapshotParams(snapshot=SNAPSHOT, labels=MARK, **more)


def check_refusals(daytona):
    with refused(DaytonaAuthenticationError):
        client("wrong").get("anything")
    with refused(DaytonaBadRequestError, "Snapshot no/such not found"):
        daytona.create(CreateSandboxFromSnapshotParams(snapshot="no/such", labels=MARK))
    with refused(DaytonaNotFoundError):
        daytona.get("no-such-sandbox")
    assert listed(daytona) == []


def check_create(daytona, name):
    more = {"network_block_all": True, "auto_stop_interval": 0, "ttl_minutes": 30, "env_vars": {"GIVEN": "1"}}
    sandbox = daytona.create(wishes(name=name, **more))
    assert sandbox.state == "started" and sandbox.name == name, sandbox
    assert sandbox.network_block_all is True and sandbox.auto_stop_interval == 0
    assert sandbox.labels.items() >= MARK.items()
    assert daytona.get(name).id == daytona.get(sandbox.id).id == sandbox.id
    with refused(DaytonaConflictError):
        daytona.create(wishes(name=name))
    return sandbox


def check_list(daytona, sandbox):
    assert listed(daytona) == [sandbox.id]
    others = [daytona.create(wishes()).id for _ in range(2)]
    assert listed(daytona, limit=1) == [*reversed(others), sandbox.id]  # three pages
    for other in others:
        daytona.get(other).delete(wait=True)
    assert listed(daytona) == [sandbox.id]


def check_exec(sandbox):
    answer = sandbox.process.exec("echo out; echo err >&2; echo $GIVEN $MORE; pwd; exit 7", cwd="/tmp", env={"MORE": "two words"})
    assert (answer.exit_code, answer.result) == (7, "out\nerr\n1 two words\n/tmp\n"), answer
    answer = sandbox.process.exec("sleep 1000 >/dev/null 2>&1 </dev/null & echo $!")
    assert answer.exit_code == 0, answer
    assert sandbox.process.exec(f"kill {answer.result}").exit_code == 0
    with refused(DaytonaTimeoutError):
        sandbox.process.exec("sleep 999", timeout=1)
    # The brackets keep the pattern from finding the command that looks for it.
    answer = sandbox.process.exec("cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'sleep [9]99'")
    assert answer.result == "0\n", answer
    assert sandbox.process.exec("true", cwd="/no/such").exit_code == -1


def check_files(sandbox):
    content = os.urandom(1 << 20)
    sandbox.fs.upload_file(content, "/tmp/sdk test/ü.bin")
    assert sandbox.fs.download_file("/tmp/sdk test/ü.bin") == content
    sandbox.fs.create_folder("/tmp/sdk folder", "700")
    answer = sandbox.process.exec("stat -c '%a %u' '/tmp/sdk folder' '/tmp/sdk test/ü.bin'; id -u")
    folder, file, user = answer.result.splitlines()
    assert folder == f"700 {user}" and file.endswith(f" {user}"), answer
    with refused(DaytonaNotFoundError, "/no/such"):
        sandbox.fs.download_file("/no/such")
    with refused(DaytonaError, "400"):
        sandbox.fs.upload_file(b"x", "/proc/no/such")


def check_terminal(sandbox):
    said = bytearray()
    terminal = sandbox.process.create_pty_session("one", cwd="/tmp", envs={"WORD": "wörd"}, pty_size=PtySize(rows=30, cols=100))
    with refused(DaytonaConflictError):
        sandbox.process.create_pty_session("one")
    info = terminal.resize(PtySize(rows=40, cols=120))
    assert (info.rows, info.cols, info.active) == (40, 120, True), info
    # Every byte there is, through a terminal in raw mode and back.
    every = bytes(range(256))
    terminal.send_input('pwd; echo "<$WORD>"; tty; stty size; stty raw -echo; echo be""gin; head -c 256; exit 3\n')
    for piece in terminal:
        said += piece
        if b"begin\n" in said and every:
            terminal.send_input(every)
            every = b""
    text, _, echoed = bytes(said).partition(b"begin\n")
    assert echoed.startswith(bytes(range(256))), said
    for part in ("/tmp\r\n", "<wörd>\r\n", "/dev/pts/", "40 120\r\n"):
        assert part.encode() in text, (part, said)
    assert terminal.exit_code == 3, terminal.error
    terminal.disconnect()
    assert sandbox.process.list_pty_sessions() == []


def check_terminal_goes_on(sandbox):
    """A terminal outlives its client, and its processes do not outlive it."""
    first = sandbox.process.create_pty_session("two")
    first.send_input("sleep 888 & sleep 889\n")
    running = "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -o 'sleep 88[8-9]' | sort -u"
    while sandbox.process.exec(running).result != "sleep 888\nsleep 889\n":
        pass
    first.disconnect()
    second = sandbox.process.connect_pty_session("two")
    assert [info.id for info in sandbox.process.list_pty_sessions()] == ["two"]
    assert sandbox.process.exec(running).result == "sleep 888\nsleep 889\n"
    second.kill()
    result = second.wait(timeout=20)
    assert (result.exit_code, result.error) == (137, "SIGKILL"), result
    second.disconnect()
    assert sandbox.process.exec(running).result == ""
    with refused(DaytonaNotFoundError):
        sandbox.process.get_pty_session_info("two")


def check_delete(daytona, sandbox):
    daytona.delete(sandbox, wait=True)
    with refused(DaytonaNotFoundError):
        daytona.get(sandbox.id)
    assert listed(daytona) == []


def main():
    daytona = client(KEY)
    check_refusals(daytona)
    sandbox = check_create(daytona, "sdk-" + uuid.uuid4().hex)
    try:
        check_list(daytona, sandbox)
        check_exec(sandbox)
        check_files(sandbox)
        check_terminal(sandbox)
        check_terminal_goes_on(sandbox)
    except BaseException:
        sandbox.delete()
        raise
    check_delete(daytona, sandbox)
    print("ok")


main()
