# The world outside, for tests: a network namespace with public-looking, private and metadata addresses, and servers behind all of
# them. Whoever gets through reaches something that says so. Arguments: a certificate with its key.
import asyncio, collections, json, socket, ssl, struct, subprocess, sys, time

V4 = [
    "93.184.216.2/24", "93.184.216.34/24", "93.184.216.35/24", "93.184.216.53/24", "93.184.216.40/24",
    "10.0.0.5/24", "192.168.1.1/24", "172.16.0.5/24", "169.254.169.254/16", "169.254.170.2/16", "100.100.100.200/32",
    "168.63.129.16/32", "198.18.0.5/32", "8.8.8.8/32", "1.1.1.1/32",
]
V6 = ["2606:2800:220::2/64", "2606:2800:220::34/64", "fd00:ec2::254/128"]
GOOD, EVIL, META = "93.184.216.34", "93.184.216.35", "169.254.169.254"
NAMES = {
    "good.example": [GOOD], "www.good.example": [GOOD], "evil.example": [EVIL], "both.example": [GOOD], "private.example": ["10.0.0.5"],
    "meta.example": [META], "mixed.example": [META, GOOD], "metadata.google.internal": [META], "six.example": ["2606:2800:220::34"],
    "mapped.example": ["::ffff:169.254.169.254"], "nat64.example": ["64:ff9b::a9fe:a9fe"], "machine.example": ["93.184.216.1"],
    "loop.example": ["127.0.0.1"], "registry.good.example": ["93.184.216.40"], "github.com": [GOOD], "closed.example": ["93.184.216.40"],
    "silent.example": [f"93.184.217.{n}" for n in range(1, 17)],
}
ALIASES = {"alias.example": "meta.example"}
seen = {"dns": 0, "requests": 0, "open": 0, "asked": {}}
said_to = collections.deque(maxlen=2000)


def addresses(name):
    if name == "rebind.example":
        return [GOOD] if seen["asked"].get(name, 0) % 2 else [META]
    if name.endswith(".tunnel.example"):
        return [GOOD]
    return NAMES.get(name)


def answer(question):
    identity, _, count = struct.unpack("!HHH", question[:6])
    at, labels = 12, []
    while question[at]:
        labels.append(question[at + 1 : at + 1 + question[at]].decode("latin1").lower())
        at += 1 + question[at]
    kind = struct.unpack("!H", question[at + 1 : at + 3])[0]
    name, asked = ".".join(labels), question[12 : at + 5]
    seen["dns"] += 1
    if kind == 1:
        seen["asked"][name] = seen["asked"].get(name, 0) + 1
    records, target = [], name
    if name in ALIASES:
        target = ALIASES[name]
        alias = b"".join(bytes([len(part)]) + part.encode() for part in target.split(".")) + b"\0"
        records.append(b"\xc0\x0c" + struct.pack("!HHIH", 5, 1, 0, len(alias)) + alias)
    found = addresses(target)
    for one in found or []:
        packed = __import__("ipaddress").ip_address(one).packed
        if {4: 1, 16: 28}[len(packed)] == kind:
            owner = b"\xc0\x0c" if target == name else alias
            records.append(owner + struct.pack("!HHIH", kind, 1, 0, len(packed)) + packed)
    code = 0 if found is not None or name in ALIASES else 3
    return struct.pack("!HHHHHH", identity, 0x8180 | code, 1, len(records), 0, 0) + asked + b"".join(records)


class Names(asyncio.DatagramProtocol):
    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, data, sender):
        try:
            said = answer(data)
        except Exception:
            return
        if not said[12:].startswith(b"\x04slow"):
            self.transport.sendto(said, sender)


def packed(text):
    return __import__("gzip").compress(text)


async def reflect(path, headers, body, writer):
    """Answers that give back what came, in all the ways in which servers do that."""
    token = headers.get("authorization", "none").encode()
    kind = path.split("?")[0].removeprefix("/v1").removeprefix("/reflect/")
    if kind == "split":
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        for at in range(0, len(token), 3):
            piece = token[at : at + 3]
            writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            await writer.drain()
            await asyncio.sleep(0.005)
        writer.write(b"0\r\n\r\n")
    elif kind == "trailer":
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: x-echo\r\n\r\n2\r\nok\r\n0\r\nx-echo: " + token + b"\r\n\r\n")
    elif kind.startswith("coded/"):
        # Compressed on its way only: the names of the codings stand in the path, a header for each part.
        lines = b"".join(b"transfer-encoding: %s\r\n" % one.encode() for one in kind[6:].replace("+", ", ").split("/"))
        data = packed(token)
        chunks = b"%x\r\n%s\r\n0\r\n\r\n" % (len(data), data)
        writer.write(b"HTTP/1.1 200 OK\r\n" + lines + b"\r\n" + (chunks if b"chunked" in lines else data))
        if b"chunked" not in lines:
            writer.close()
    elif kind == "upgrade":
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n" + token)
    else:
        base64, quote = __import__("base64"), __import__("urllib.parse").parse.quote
        said = {"body": body, "base64": base64.b64encode(b"x:" + token), "percent": quote(token.decode("latin1"), safe="").encode(),
                "packed": packed(token), "json": json.dumps({"you said": token.decode("latin1")}).encode()}.get(kind, token)
        first = {"status": b"200 " + token, "redirect": b"302 Found\r\nlocation: https://evil.example/?t=" + token, "header": b"200 OK\r\nx-echo: " + token,
                 "packed": b"200 OK\r\ncontent-encoding: gzip"}.get(kind, b"200 OK")
        if "range" in headers:
            first, said = b"206 Partial Content", said[:12]
        writer.write(b"HTTP/1.1 %s\r\ncontent-length: %d\r\n\r\n" % (first, len(said)) + said)
    await writer.drain()


async def serve(reader, writer):
    seen["open"] += 1
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            lines = head.decode("latin1").split("\r\n")
            method, path, _ = lines[0].split(" ", 2)
            headers = {n.lower(): v.strip() for n, v in (line.split(":", 1) for line in lines[1:] if ":" in line)}
            # As in RFC 9112, chunks count for more than a length.
            body = b"" if headers.get("transfer-encoding") else await reader.readexactly(int(headers.get("content-length", 0)))
            if headers.get("transfer-encoding"):
                while (size := int(await reader.readline(), 16)):
                    body += (await reader.readexactly(size + 2))[:-2]
                await reader.readline()
            seen["requests"] += 1
            here, tls = writer.get_extra_info("sockname")[0], bool(writer.get_extra_info("ssl_object"))
            said_to.append({"here": here, "tls": tls, "path": path, "headers": headers, "body": body[:1000].decode("latin1")})
            if "/reflect/" in path:
                await reflect(path, headers, body, writer)
                continue
            if path == "/hang":
                # A head of 392 kB that does not end.
                writer.write(b"HTTP/1.1 200 OK\r\n" + b"".join(b"x-%d: %s\r\n" % (n, b"y" * 8000) for n in range(49)))
                await writer.drain()
                await reader.read()
                return
            if path == "/echo":
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
                await writer.drain()
                continue
            if path == "/drip":
                writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n")
                while True:
                    writer.write(b"drip\n")
                    await writer.drain()
                    await asyncio.sleep(0.02)
            if path.startswith("/bytes/"):
                said = b"x" * int(path[7:])
            elif path == "/seen":
                said = json.dumps({**seen, "said": list(said_to)}).encode()
            elif path == "/quick":
                said = b"quick"
            else:
                said = json.dumps({"reached": here, "method": method, "path": path, "headers": headers, "body": len(body)}).encode()
            status = "302 Found\r\nlocation: http://169.254.169.254/latest/meta-data/" if path == "/redirect" else "200 OK"
            writer.write(f"HTTP/1.1 {status}\r\ncontent-length: {len(said)}\r\n\r\n".encode() + said)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError, ValueError, IndexError, asyncio.LimitOverrunError):
        pass
    finally:
        seen["open"] -= 1
        writer.close()


async def echo(reader, writer):
    writer.write(b"hello first\n")
    try:
        while piece := await reader.read(65536):
            writer.write(piece)
            await writer.drain()
    except ConnectionError:
        pass
    writer.close()


async def take(client, context):
    """Serves a connection, in TLS if its first byte begins a handshake. An attack may send a request in the clear to this port."""
    loop, arrived = asyncio.get_running_loop(), asyncio.Event()
    client.setblocking(False)
    loop.add_reader(client, arrived.set)
    await arrived.wait()
    loop.remove_reader(client)
    try:
        is_tls = client.recv(1, socket.MSG_PEEK) == b"\x16"
        reader = asyncio.StreamReader()
        protocol = lambda: asyncio.StreamReaderProtocol(reader, serve)
        await loop.connect_accepted_socket(protocol, client, ssl=context if is_tls else None)
    except OSError:
        client.close()


async def accept(listener, context):
    listener.setblocking(False)
    tasks = set()
    while True:
        client, _ = await asyncio.get_running_loop().sock_accept(listener)
        tasks.add(task := asyncio.create_task(take(client, context)))
        task.add_done_callback(tasks.discard)


async def main():
    while subprocess.run(["ip", "link", "show", "in0"], capture_output=True).returncode:
        time.sleep(0.01)
    commands = ["link set lo up", "link set in0 up"] + [f"addr add {one} dev in0" for one in V4]
    commands += [f"-6 addr add {one} dev in0 nodad" for one in V6] + ["route add default via 93.184.216.1"]
    for command in commands:
        subprocess.run(["ip", *command.split()], check=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(sys.argv[1])
    loop = asyncio.get_running_loop()
    await loop.create_datagram_endpoint(Names, local_addr=("93.184.216.53", 53))
    for port in (80, 8080, 2375, 5432):
        await asyncio.start_server(serve, None, port, backlog=1024)
    families = {socket.AF_INET: "", socket.AF_INET6: "::"}
    listeners = [socket.create_server((place, 443), family=family, backlog=1024) for family, place in families.items()]
    accepting = [asyncio.create_task(accept(listener, context)) for listener in listeners]
    await asyncio.start_server(echo, None, 2222, backlog=1024)
    print("ready", flush=True)
    await asyncio.gather(*accepting)


asyncio.run(main())
