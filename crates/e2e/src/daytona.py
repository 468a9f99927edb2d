"""A test server with the part of Daytona's public REST API that is used here. Each workspace is a container of a Docker engine.

    python3 daytona.py --docker unix:///path/docker.sock --key KEY [--port 0] [--cpu 2] [--memory 2] [--user 0]

The first line on standard output is `listening http://127.0.0.1:PORT/api`. It ends on SIGTERM and when its standard input is
closed, and then removes every container that it made. It needs aiohttp, root, and the engine on the same machine: terminals are
opened in the container's own devpts, as Daytona's daemon does inside. `docker exec -t` would not be 8-bit clean: the engine always
watches the input for detach keys, so it keeps back the first of them and ends at the last.
"""
import argparse, asyncio, base64, binascii, errno, fcntl, http, json, os, re, signal, struct, sys, termios, threading, time, uuid
from datetime import datetime, timedelta, timezone
from urllib.parse import quote

from aiohttp import WSMsgType, web

READ = 32 * 1024  # at most this much of a terminal's output in one message
LIMIT = 64 * 1024  # the largest message a client may send
QUEUE = 256  # messages that may wait for a slow client
PATIENCE = 10  # seconds for a last word to a client
EXIT_CONTROL = "X-Daytona-Pty-Exit-Control"  # offered by clients that want the exit code as a message, too
ENVS = "X-Daytona-Pty-Envs~"  # how create-connect is given the environment: a subprotocol that ends in base64 of JSON
BOUNDARY = "DAYTONA-FILE-BOUNDARY"
TIOCSPTLCK, TIOCGPTN = 0x40045431, 0x80045430
# These print the shell's session before anything else, to kill it by. The outer sh stays: its standard output must last as long as
# the command does, for that is what `docker exec` waits for.
EXECUTE = 'echo $$; "$1" 2>&1; exit $?'
TERMINAL = 'exec 3<>"$2"; echo $$; "$1" -i -l <&3 >&3 2>&3 3>&-; exit $?'
UPLOAD = 'mkdir -p -- "$(dirname -- "$1")" && cat >"$1"'
DOWNLOAD = '[ -e "$1" ] || exit 44; [ ! -d "$1" ] || exit 40; [ -r "$1" ] || exit 43; exec cat -- "$1"'
PROBE = "id -u; pwd; grep '^[^#]' /etc/shells"


class Failure(Exception):
    def __init__(self, status, message, body=None):
        super().__init__(message)
        self.status, self.body = status, body


def stamp(moment=None):
    return (moment or datetime.now(timezone.utc)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def refusal(request, status, message, code=None, path=None):
    """An error as Daytona words it: the API and the toolbox differ a little."""
    reason = http.HTTPStatus(status).phrase
    body = {"path": path or request.path, "timestamp": stamp(), "statusCode": status, "message": message}
    if request.path.startswith("/toolbox/"):
        return body | {"code": code or reason, "method": request.method}
    return body | {"error": reason}


def flags(cwd, envs):
    """The options of `docker exec` for a directory and an environment."""
    return [*(["-w", cwd] if cwd else []), *(part for key, value in (envs or {}).items() for part in ("-e", f"{key}={value}"))]


async def body_of(request):
    try:
        body = await request.json()
    except ValueError as error:
        raise Failure(400, f"invalid request body: {error}")
    if not isinstance(body, dict):
        raise Failure(400, "invalid request body: not an object")
    return body


class Docker:
    def __init__(self, host):
        self.command = ["docker", "--host", host]

    async def start(self, *arguments, **streams):
        # In a session of its own: a signal to the group of the server must not end what removes its containers.
        return await asyncio.create_subprocess_exec(*self.command, *arguments, **streams, start_new_session=True)

    async def run(self, *arguments, given=b""):
        """Runs to the end; the exit code, the output and the errors."""
        pipe = asyncio.subprocess.PIPE
        child = await self.start(*arguments, stdin=pipe, stdout=pipe, stderr=pipe)
        said, error = await child.communicate(given)
        return child.returncode, said, error.decode(errors="replace").strip()


class Workspace:
    def __init__(self, server, wish, number):
        self.server, self.docker, self.number = server, server.docker, number
        self.id = str(uuid.uuid4())
        self.container = f"daytona-test-{self.id}"
        self.state, self.trouble = "creating", None
        self.terminals = {}
        self.created = self.changed = self.active = stamp()
        self.name, self.wish = wish.get("name") or self.id, wish
        ttl = wish.get("ttlMinutes") or 0
        self.ends = stamp(datetime.now(timezone.utc) + timedelta(minutes=ttl)) if ttl else None
        self.timer = asyncio.get_running_loop().call_later(ttl * 60, self.destroy) if ttl else None
        self.creation, self.destruction = asyncio.create_task(self.create()), None

    def turn(self, state, trouble=None):
        self.state, self.trouble, self.changed = state, trouble, stamp()

    async def create(self):
        try:
            await self.begin()
        except Exception as error:
            if self.state == "creating":
                self.turn("error", str(error))
        else:
            if self.state == "creating":
                self.turn("started")

    async def begin(self):
        # Daytona's containers are privileged. Where tests run, the capability to raise resource limits may be missing, and then
        # --privileged is refused: so everything else that it stands for. A workspace runs as the image's own user, unless this server
        # is told to take every image for one that names another.
        options = [
            "--cap-add", "ALL", "--cap-drop", "SYS_RESOURCE", "--security-opt", "seccomp=unconfined",
            "--security-opt", "apparmor=unconfined", "--security-opt", "systempaths=unconfined", "--network", "none",
            "--memory", f"{self.server.memory}g", "--cpus", str(self.server.cpu), "--init", "--entrypoint", "/bin/sleep",
            *(["--user", self.server.user] if self.server.user else []),
        ]
        marks = [f"daytona.test={self.server.origin}/api", f"daytona.test.name={self.name}"]
        code, _, error = await self.docker.run(
            "run", "-d", "--pull", "never", "--name", self.container, *(part for mark in marks for part in ("--label", mark)), *options,
            *flags(None, self.wish.get("env")), self.wish["snapshot"], "infinity",
        )
        if code:
            raise Failure(500, error)
        code, said, error = await self.docker.run("inspect", "--format", "{{.State.Pid}}", self.container)
        if code or not int(said):
            raise Failure(500, error or "the container has ended")
        self.pid = int(said)
        _, said, error = await self.docker.run("exec", self.container, "sh", "-c", PROBE)
        if said.count(b"\n") < 2:
            raise Failure(500, error or "the image has no shell")
        uid, self.home, *shells = said.decode().splitlines()
        self.uid = int(uid)
        wanted = ("/usr/bin/zsh", "/bin/zsh", "/usr/bin/bash", "/bin/bash")  # the order in which Daytona looks for them
        self.shell = next((shell for shell in wanted if shell in shells), "sh")

    def destroy(self):
        """Begins the end; the workspace is unknown when its container is gone. Its name is free at once."""
        if self.destruction is None:
            self.name = f"DESTROYED_{self.name}_{int(time.time() * 1000)}"
            self.turn("destroying")
            self.destruction = asyncio.create_task(self.remove())
        return self.destruction

    async def remove(self):
        if self.timer:
            self.timer.cancel()
        await asyncio.wait([self.creation])
        await self.docker.run("rm", "--force", "--volumes", self.container)
        self.server.workspaces.pop(self.id, None)

    def told(self):
        wish, server = self.wish, self.server
        given = {key: wish[key] for key in ("networkAllowList", "domainAllowList", "queueTimeout") if wish.get(key) is not None}
        return given | {
            "id": self.id, "organizationId": server.organization, "name": self.name, "snapshot": wish["snapshot"],
            "user": wish.get("user") or "daytona", "env": wish.get("env") or {}, "labels": wish.get("labels") or {},
            "public": bool(wish.get("public")), "networkBlockAll": bool(wish.get("networkBlockAll")), "kvm": False,
            "target": wish.get("target") or "us", "cpu": server.cpu, "gpu": 0, "memory": server.memory, "disk": 3,
            "state": self.state, "desiredState": "destroyed" if self.destruction else "started", "errorReason": self.trouble,
            "recoverable": False, "backupState": "None", "volumes": wish.get("volumes") or [],
            "autoStopInterval": wish.get("autoStopInterval", 15), "autoDeleteInterval": wish.get("autoDeleteInterval", -1),
            "autoArchiveInterval": wish.get("autoArchiveInterval", 7 * 24 * 60), "autoDestroyAt": self.ends,
            "createdAt": self.created, "updatedAt": self.changed, "lastActivityAt": self.active, "sandboxClass": "container",
            "toolboxProxyUrl": server.origin + "/toolbox",
        }

    def listed(self):
        return {key: value for key, value in self.told().items() if key not in ("env", "volumes", "kvm")}

    async def session(self, child):
        """The session of a child begun with EXECUTE or TERMINAL; None and what it said if it did not begin."""
        said = await child.stdout.readline()
        return (int(said), b"") if said.strip().isdigit() else (None, said + await child.stdout.read())

    def running(self, session):
        """Processes, by the machine's ids, in that session of the workspace or below one that is."""
        parents, found = {}, set()
        space = os.readlink(f"/proc/{self.pid}/ns/pid")
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/status") as file:
                    status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
                if os.readlink(f"/proc/{pid}/ns/pid") == space and status["NSsid"].split()[-1] == str(session):
                    if not status["State"].startswith(("Z", "X")):
                        found.add(int(pid))
                parents[int(pid)] = int(status["PPid"])
            except (OSError, KeyError):
                pass  # it has ended meanwhile
        for _ in parents:
            below = {pid for pid, parent in parents.items() if parent in found} - found
            if not below:
                break
            found |= below
        return sorted(found, reverse=True)

    async def kill(self, session):
        """Ends a session inside the container: the end of the `docker exec` would leave it running. Again, as it may still fork."""
        try:
            for _ in range(100):
                processes = self.running(session)
                for pid in processes:
                    try:
                        os.kill(pid, signal.SIGKILL)
                    except ProcessLookupError:
                        pass
                if not processes:
                    return
                await asyncio.sleep(0.02)
        except OSError:
            pass  # the container is gone, and everything with it


class Client:
    """A WebSocket at a terminal. Output waits in a queue; who lets it fill up is dropped."""

    def __init__(self, socket, transport, wants_exit):
        self.socket, self.transport, self.wants_exit = socket, transport, wants_exit
        self.queue, self.sender, self.dropping = asyncio.Queue(QUEUE), None, None

    def begin(self):
        self.sender = asyncio.create_task(self.send())

    async def send(self):
        try:
            while isinstance(item := await self.queue.get(), bytes):
                await self.socket.send_bytes(item)
            if self.wants_exit:
                await self.socket.send_json({"type": "control", "status": "exited"} | item)
            code = 1000 if item["exitCode"] == 0 else 1011
            await self.socket.close(code=code, message=json.dumps(item).encode())
        except (ConnectionError, RuntimeError):
            pass  # the client went away

    def give(self, item):
        try:
            self.queue.put_nowait(item)
            return True
        except asyncio.QueueFull:
            self.dropping = asyncio.create_task(self.drop())
            return False

    async def drop(self):
        self.stop()
        try:
            await asyncio.wait_for(self.socket.close(code=1008, message=b"slow consumer"), PATIENCE)
        except Exception:
            pass
        self.transport.abort()

    def stop(self):
        if self.sender:
            self.sender.cancel()


class Terminal:
    def __init__(self, workspace, wish):
        self.workspace, self.id = workspace, wish["id"]
        self.cwd = wish.get("cwd") or workspace.home
        self.envs = {"TERM": "xterm-256color"} | (wish.get("envs") or {})
        self.cols, self.rows = size_of(wish, "cols", 80), size_of(wish, "rows", 24)
        self.lazy, self.created = bool(wish.get("lazyStart")), stamp()
        self.clients, self.master, self.watcher = set(), None, None
        self.starting, self.writing = asyncio.Lock(), asyncio.Lock()

    @property
    def alive(self):
        return self.watcher is not None and not self.watcher.done() and self.master is not None

    def told(self):
        return {
            "id": self.id, "cwd": self.cwd, "envs": self.envs, "cols": self.cols, "rows": self.rows, "createdAt": self.created,
            "active": self.alive, "lazyStart": self.lazy,
        }

    def resize(self):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", self.rows, self.cols, 0, 0))

    def open(self):
        """A new pseudo-terminal of the container; its name there."""
        home = f"/proc/{self.workspace.pid}/root/dev/pts"
        self.master = os.open(f"{home}/ptmx", os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
        fcntl.ioctl(self.master, TIOCSPTLCK, struct.pack("i", 0))
        number = struct.unpack("i", fcntl.ioctl(self.master, TIOCGPTN, bytes(4)))[0]
        os.chown(f"{home}/{number}", self.workspace.uid, -1)
        self.resize()
        return f"/dev/pts/{number}"

    async def start(self):
        async with self.starting:
            if self.watcher is None:
                try:
                    await self.begin()
                except Exception:
                    self.close()
                    raise

    async def begin(self):
        workspace, pipe = self.workspace, asyncio.subprocess.PIPE
        child = await workspace.docker.start(
            "exec", *flags(self.cwd, self.envs), workspace.container, "sh", "-c", TERMINAL, "sh", workspace.shell, self.open(),
            stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=asyncio.subprocess.STDOUT,
        )
        self.session, said = await workspace.session(child)
        if self.session is None:
            await child.wait()
            raise Failure(500, said.decode(errors="replace").strip())
        asyncio.get_running_loop().add_reader(self.master, self.read)
        self.watcher = asyncio.create_task(self.watch(child))

    def read(self):
        """One piece of output to every client, or to nobody; whether there was one."""
        try:
            piece = os.read(self.master, READ)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno != errno.EIO:  # this is how the end of the last process at the terminal shows
                raise
            piece = b""
        if not piece:
            asyncio.get_running_loop().remove_reader(self.master)
            return False
        self.clients = {client for client in self.clients if client.give(piece)}
        return True

    async def write(self, data):
        """All of it, in the order of arrival; waits while the terminal takes no more, and so does the client's connection."""
        async with self.writing:
            view = memoryview(data)
            while view and self.alive:
                try:
                    view = view[os.write(self.master, view) :]
                except BlockingIOError:
                    await self.writable()
                except OSError:
                    return

    async def writable(self):
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        loop.add_writer(self.master, ready.set)
        try:  # not for ever: the kernel may announce room before there is any
            await asyncio.wait_for(ready.wait(), 0.05)
        except TimeoutError:
            pass
        finally:
            if self.master is not None:
                loop.remove_writer(self.master)

    async def watch(self, child):
        """Waits for the shell to end, and tells what is left of its output and the exit code."""
        code = await child.wait()
        self.forget()
        while self.read():
            await asyncio.sleep(0)
        self.close()
        if self.workspace.destruction:  # then nobody inside is left to say anything
            return [client.transport.abort() for client in self.clients]
        names = {130: "Ctrl+C", 137: "SIGKILL", 143: "SIGTERM"}
        reason = names.get(code) or (f"signal {code - 128}" if code > 128 else "non-zero exit")
        last = {"exitCode": code} | ({"exitReason": reason} if code else {})
        senders = [client.sender for client in self.clients if client.give(last) and client.sender]
        if senders:
            await asyncio.wait(senders, timeout=PATIENCE)

    def close(self):
        if self.master is not None:
            asyncio.get_running_loop().remove_reader(self.master)
            asyncio.get_running_loop().remove_writer(self.master)
            os.close(self.master)
            self.master = None

    def forget(self):
        if self.workspace.terminals.get(self.id) is self:  # its name may be another's by now
            del self.workspace.terminals[self.id]

    async def kill(self):
        self.forget()
        async with self.starting:
            if self.watcher:
                await self.workspace.kill(self.session)
                await asyncio.wait([self.watcher], timeout=PATIENCE)

    async def attach(self, request):
        """Serves one client. When it goes away, the terminal goes on."""
        offered = [part.strip() for part in request.headers.get("Sec-WebSocket-Protocol", "").split(",")]
        socket = new_socket()
        await socket.prepare(request)
        client = Client(socket, request.transport, EXIT_CONTROL in offered)
        self.clients.add(client)  # before the shell begins, to miss nothing of what it says
        try:
            try:
                await self.start()
            except Exception as error:
                self.forget()
                return await decline(socket, f"failed to start PTY session: {error}")
            await socket.send_json({"type": "control", "status": "connected"})
            client.begin()
            async for message in socket:
                if message.type in (WSMsgType.TEXT, WSMsgType.BINARY):
                    await self.write(message.data.encode() if message.type == WSMsgType.TEXT else message.data)
            if self.watcher.done() or not self.alive:  # its last words may still be on their way
                await asyncio.wait([client.sender], timeout=PATIENCE)
        except ConnectionError:
            pass
        finally:
            self.clients.discard(client)
            client.stop()
        return socket


def new_socket():
    return web.WebSocketResponse(protocols=[EXIT_CONTROL], compress=False, max_msg_size=LIMIT + 1, timeout=PATIENCE)


async def decline(socket, why):
    await socket.send_json({"type": "control", "status": "error", "error": f"Failed to connect to PTY session: {why}"})
    await socket.close()
    return socket


def size_of(wish, key, default=None):
    value = default if wish.get(key) is None else wish[key]
    if not isinstance(value, int) or not 0 < value <= 1000:
        raise Failure(400, "", {"error": f"invalid value for {key} - must be less than 1000"})
    return value


class Server:
    def __init__(self, options):
        self.docker, self.key = Docker(options.docker), options.key
        self.cpu, self.memory, self.user = options.cpu, options.memory, options.user
        self.organization, self.origin = str(uuid.uuid4()), None
        self.workspaces, self.made = {}, 0

    def routes(self):
        box = "/toolbox/{workspace}"
        return [
            web.post("/api/sandbox", self.create),
            web.get("/api/sandbox", self.list),
            web.get("/api/snapshots/{snapshot:.+}", self.snapshot),
            web.get("/api/sandbox/{workspace}", self.get),
            web.delete("/api/sandbox/{workspace}", self.delete),
            web.get("/api/sandbox/{workspace}/toolbox-proxy-url", self.proxy),
            web.post(box + "/process/execute", self.execute),
            web.post(box + "/process/pty", self.pty_create),
            web.get(box + "/process/pty", self.pty_list),
            web.get(box + "/process/pty/create-connect", self.pty_create_connect),
            web.get(box + "/process/pty/{terminal}", self.pty_get),
            web.delete(box + "/process/pty/{terminal}", self.pty_delete),
            web.post(box + "/process/pty/{terminal}/resize", self.pty_resize),
            web.get(box + "/process/pty/{terminal}/connect", self.pty_connect),
            web.post(box + "/files/folder", self.folder),
            web.post(box + "/files/bulk-upload", self.upload),
            web.get(box + "/files/download", self.download),
            web.post(box + "/files/bulk-download", self.bulk_download),
        ]

    @web.middleware
    async def guard(self, request, handler):
        """Nobody without the key; and every error as JSON."""
        if request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.json_response(refusal(request, 401, "Unauthorized"), status=401)
        try:
            return await handler(request)
        except Failure as error:
            return web.json_response(error.body or refusal(request, error.status, str(error)), status=error.status)
        except web.HTTPException as error:
            return web.json_response(refusal(request, error.status, f"Cannot {request.method} {request.path}"), status=error.status)

    # The API

    def named(self, request):
        wanted = request.match_info["workspace"]
        by_name = (workspace for workspace in self.workspaces.values() if workspace.name == wanted)
        if workspace := self.workspaces.get(wanted) or next(by_name, None):
            return workspace
        raise Failure(404, f"Sandbox with ID or name {wanted} not found")

    async def create(self, request):
        wish = await body_of(request)
        if any(wish.get(key) for key in ("cpu", "memory", "disk", "gpu")):
            raise Failure(400, "Cannot specify Sandbox resources when using a snapshot")
        image = wish.get("snapshot") or ""
        if not image or not await self.has(image):  # Daytona answers 400 here, not 404
            raise Failure(400, f"Snapshot {image} not found. Did you add it through the Daytona Dashboard?")
        name = wish.get("name")
        if name and any(workspace.name == name for workspace in self.workspaces.values()):
            raise Failure(409, f"Sandbox with name {name} already exists")
        self.made += 1
        workspace = Workspace(self, wish, self.made)
        self.workspaces[workspace.id] = workspace
        return web.json_response(workspace.told())

    async def has(self, image):
        return (await self.docker.run("image", "inspect", "--format", "{{.Id}}", "--", image))[0] == 0

    async def snapshot(self, request):
        name = request.match_info["snapshot"]
        if not await self.has(name):
            raise Failure(404, f"Snapshot {name} not found")
        return web.json_response({"id": name, "name": name, "state": "active", "cpu": self.cpu, "mem": self.memory, "disk": 3})

    async def get(self, request):
        return web.json_response(self.named(request).told())

    async def delete(self, request):
        workspace = self.named(request)
        workspace.destroy()
        return web.json_response(workspace.told())

    async def proxy(self, request):
        return web.json_response({"url": self.named(request).told()["toolboxProxyUrl"]})

    async def list(self, request):
        """Newest first. The cursor is the number of the last one told, so that what comes and goes meanwhile shifts nothing."""
        query = request.query
        try:
            labels = json.loads(query.get("labels") or "{}")
            last = int(base64.urlsafe_b64decode(query["cursor"])) if query.get("cursor") else self.made + 1
            limit = int(query.get("limit", 100))
        except (ValueError, binascii.Error):
            raise Failure(400, "Invalid labels JSON format, cursor or limit")
        if not isinstance(labels, dict) or not 1 <= limit <= 200:
            raise Failure(400, "limit must not be less than 1 nor greater than 200, and labels an object")
        found = [workspace for workspace in self.workspaces.values() if workspace.number < last]
        found = [workspace for workspace in found if labels.items() <= (workspace.wish.get("labels") or {}).items()]
        found = [workspace for workspace in found if workspace.name.lower().startswith(query.get("name", "").lower())]
        found = [workspace for workspace in found if workspace.id.startswith(query.get("id", "").lower())]
        found = [workspace for workspace in found if workspace.state in query.getall("states", [workspace.state])]
        found.sort(key=lambda workspace: -workspace.number)
        page = found[:limit]
        cursor = base64.urlsafe_b64encode(str(page[-1].number).encode()).decode() if len(found) > limit else None
        return web.json_response({"items": [workspace.listed() for workspace in page], "nextCursor": cursor})

    # The toolbox

    def ready(self, request):
        workspace = self.named(request)
        if workspace.state != "started":
            raise Failure(400, "sandbox IP not found. Is the Sandbox started?")
        workspace.active = stamp()
        return workspace

    async def execute(self, request):
        workspace, wish = self.ready(request), await body_of(request)
        command, envs = wish.get("command") or "", wish.get("envs") or {}
        if not command.strip():
            raise Failure(400, "command cannot be empty or whitespace-only")
        for key in envs:
            if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", key):
                raise Failure(400, f"invalid environment variable name: '{key}'")
        pipe = asyncio.subprocess.PIPE
        child = await self.docker.start(
            "exec", "-i", *flags(wish.get("cwd"), envs), workspace.container, "sh", "-c", EXECUTE, "sh", workspace.shell,
            stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.STDOUT,
        )
        session, said = await workspace.session(child)
        if session is None:
            await child.communicate(b"")
            return web.json_response({"exitCode": -1, "result": said.decode(errors="replace")})
        try:
            said, _ = await asyncio.wait_for(child.communicate(command.encode()), wish.get("timeout") or None)
        except TimeoutError:
            await workspace.kill(session)
            await child.wait()
            raise Failure(408, "command execution timeout")
        return web.json_response({"exitCode": child.returncode, "result": said.decode(errors="replace")})

    async def folder(self, request):
        workspace, path, mode = self.ready(request), request.query.get("path"), request.query.get("mode") or "0755"
        if not path or not re.fullmatch("[0-7]{1,5}", mode):
            raise Failure(400, "invalid mode format" if path else "path is required")
        code, _, error = await self.docker.run("exec", workspace.container, "mkdir", "-p", "-m", mode, "--", path)
        if code:
            raise Failure(400, error)
        return web.Response(status=201)

    async def upload(self, request):
        workspace, paths, files, errors = self.ready(request), {}, [], []
        if not request.content_type.startswith("multipart/"):
            raise Failure(400, "", {"errors": ["invalid multipart form"]})
        async for part in await request.multipart():
            index, _, kind = (part.name or "").rpartition(".")
            if kind == "path":
                paths[index] = (await part.text()).strip()
            elif kind == "file" and not paths.get(index):
                errors.append(f"{index}: missing .path metadata")
            elif kind == "file":
                written, error = await self.store(workspace, paths[index], part)
                errors.append(f"{paths[index]}: {error}") if error else files.append({"path": paths[index], "bytes": written})
        return web.json_response({"errors": errors, "files": files} if errors else {"files": files}, status=400 if errors else 200)

    async def store(self, workspace, path, part):
        pipe = asyncio.subprocess.PIPE
        child = await self.docker.start(
            "exec", "-i", workspace.container, "sh", "-c", UPLOAD, "sh", path,
            stdin=pipe, stdout=asyncio.subprocess.DEVNULL, stderr=pipe,
        )
        written = 0
        while not part.at_eof():  # to the end, even if it cannot be written: the next part follows
            piece = await part.read_chunk(LIMIT)
            written += len(piece)
            try:
                child.stdin.write(piece)
                await child.stdin.drain()
            except ConnectionError:
                pass
        _, error = await child.communicate(b"")
        return written, (error.decode(errors="replace").strip() or "failed") if child.returncode else None

    async def fetch(self, request, path):
        """A file's content, or the refusal."""
        code, said, error = await self.docker.run("exec", self.ready(request).container, "sh", "-c", DOWNLOAD, "sh", path)
        refusals = {
            44: (404, f"file not found: {path}", "FILE_NOT_FOUND"),
            43: (403, f"permission denied: {path}", "FILE_ACCESS_DENIED"),
            40: (400, f"invalid file path: path points to a directory: {path}", "INVALID_FILE_PATH"),
        }
        if not code:
            return said, None
        return None, refusal(request, *refusals.get(code, (500, f"failed to access file: {error}", "FILE_READ_FAILED")), path)

    async def download(self, request):
        path = request.query.get("path")
        if not path:
            raise Failure(400, "path is required")
        content, refused = await self.fetch(request, path)
        if refused:
            raise Failure(refused["statusCode"], refused["message"], refused)
        name = {"Content-Disposition": f"attachment; filename*=utf-8''{quote(os.path.basename(path), safe='')}"}
        return web.Response(body=content, content_type="application/octet-stream", headers=name)

    async def bulk_download(self, request):
        paths = (await body_of(request)).get("paths")
        if not paths:
            raise Failure(400, "", {"error": 'request body must be {"paths": [ ... ]} and non-empty'})
        parts = []
        for path in paths:
            content, refused = await self.fetch(request, path)
            name, kind = ("error", "application/json; charset=utf-8") if refused else ("file", "application/octet-stream")
            content = json.dumps(refused).encode() if refused else content
            plain, exact = re.sub(r'[^ !#-\[\]-~]', "_", path), quote(path, safe="")
            where = f"form-data; name=\"{name}\"; filename=\"{plain}\"; filename*=utf-8''{exact}"
            head = f"--{BOUNDARY}\r\nContent-Disposition: {where}\r\nContent-Type: {kind}\r\nContent-Length: {len(content)}\r\n\r\n"
            parts += [head.encode(), content, b"\r\n"]
        parts.append(f"--{BOUNDARY}--\r\n".encode())
        return web.Response(body=b"".join(parts), headers={"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"})

    def enlist(self, workspace, wish):
        """A new terminal that has not begun."""
        if not isinstance(wish.get("id"), str) or not wish["id"]:
            raise Failure(400, "", {"error": "session ID is required"})
        if wish["id"] in workspace.terminals:
            raise Failure(409, "", {"error": f"PTY session with ID '{wish['id']}' already exists"})
        terminal = workspace.terminals[wish["id"]] = Terminal(workspace, wish)
        return terminal

    def terminal(self, request, status=404, error="PTY session not found"):
        if terminal := self.ready(request).terminals.get(request.match_info["terminal"]):
            return terminal
        raise Failure(status, "", {"error": error})

    async def pty_create(self, request):
        workspace = self.ready(request)
        terminal = self.enlist(workspace, await body_of(request))
        if not terminal.lazy:
            try:
                await terminal.start()
            except Exception as error:
                terminal.forget()
                print(f"terminal {terminal.id}: {error}", file=sys.stderr, flush=True)
                raise Failure(500, "", {"error": "failed to start PTY session"})
        return web.json_response({"sessionId": terminal.id}, status=201)

    async def pty_create_connect(self, request):
        """Both in one; this one is told everything in the address, but for the environment."""
        workspace, wish = self.ready(request), dict(request.query)
        try:
            wish |= {key: int(wish[key]) for key in ("cols", "rows") if key in wish}
            for part in request.headers.get("Sec-WebSocket-Protocol", "").split(","):
                if part.strip().startswith(ENVS):
                    wish["envs"] = json.loads(base64.urlsafe_b64decode(part.strip()[len(ENVS) :] + "=="))
        except ValueError as error:
            raise Failure(400, "", {"error": str(error)})
        if not new_socket().can_prepare(request):
            raise Failure(400, "", {"error": "not a WebSocket"})
        return await self.enlist(workspace, wish | {"lazyStart": False}).attach(request)

    async def pty_connect(self, request):
        workspace, wanted = self.ready(request), request.match_info["terminal"]
        terminal = workspace.terminals.get(wanted)
        if terminal and (terminal.alive or terminal.watcher is None):
            return await terminal.attach(request)
        socket = new_socket()
        await socket.prepare(request)
        return await decline(socket, f"PTY session {wanted} not found")

    async def pty_list(self, request):
        return web.json_response({"sessions": [terminal.told() for terminal in self.ready(request).terminals.values()]})

    async def pty_get(self, request):
        return web.json_response(self.terminal(request).told())

    async def pty_delete(self, request):
        await self.terminal(request).kill()
        return web.json_response({"message": "PTY session deleted"})

    async def pty_resize(self, request):
        wish = await body_of(request)
        cols, rows = size_of(wish, "cols"), size_of(wish, "rows")
        terminal = self.terminal(request, 410, f"PTY session {request.match_info['terminal']} not found")
        if not terminal.alive:
            raise Failure(500, "", {"error": "cannot resize inactive PTY session"})
        terminal.cols, terminal.rows = cols, rows
        terminal.resize()
        return web.json_response(terminal.told())


def watch_input(loop, ended):
    """Standard input is read in a thread, as it may be a file; its end is the end."""

    def wait():
        while os.read(0, 4096):
            pass
        loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=wait, daemon=True).start()


async def main(options):
    loop, ended, server = asyncio.get_running_loop(), asyncio.Event(), Server(options)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    watch_input(loop, ended)
    application = web.Application(middlewares=[server.guard], client_max_size=64 << 20)
    application.add_routes(server.routes())
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", options.port)
    await site.start()
    server.origin = "http://127.0.0.1:%d" % runner.addresses[0][1]
    print(f"listening {server.origin}/api", flush=True)
    await ended.wait()
    await site.stop()
    await asyncio.gather(*(workspace.destroy() for workspace in list(server.workspaces.values())))
    await runner.cleanup()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A test server with a part of Daytona's API")
    parser.add_argument("--docker", required=True)
    parser.add_argument("--key", required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--cpu", type=int, default=2)
    parser.add_argument("--memory", type=int, default=2)
    parser.add_argument("--user", help="whose programs run in workspaces, if not those of the image's user")
    asyncio.run(main(parser.parse_args()))
