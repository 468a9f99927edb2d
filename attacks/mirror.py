# Indexes of Python, npm and Debian, as a careless mirror keeps them. Arguments: address, port. It says what it was asked for at /asked.
import base64, hashlib, http.server, io, json, sys, tarfile, threading

BASE = f"http://{sys.argv[1]}:{sys.argv[2]}"
asked = []


def tarball(name, version):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        text = json.dumps({"name": name, "version": version, "main": "index.js"}).encode()
        for path, content in (("package/package.json", text), ("package/index.js", f"module.exports = {name!r}\n".encode())):
            info = tarfile.TarInfo(path)
            info.size, info.mode = len(content), 0o644
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


# Package, version, when it was published.
NPM = {(name, version): (tarball(name, version), at) for name, version, at in (
    ("demo", "1.0.0", "2020-01-01T00:00:00.000Z"), ("demo", "2.0.0", "2999-01-01T00:00:00.000Z"), ("Demo", "1.0.0", "2020-01-01T00:00:00.000Z"),
    ("secret", "1.0.0", "2020-01-01T00:00:00.000Z"), ("@scope/demo", "1.0.0", "2020-01-01T00:00:00.000Z"), ("@other/demo", "1.0.0", "2020-01-01T00:00:00.000Z"),
    ("liar", "1.0.0", "2020-01-01T00:00:00.000Z"), ("wanderer", "1.0.0", "2020-01-01T00:00:00.000Z"), ("thief", "1.0.0", "2020-01-01T00:00:00.000Z"),
    ("weak", "1.0.0", "2020-01-01T00:00:00.000Z"), ("private", "1.0.0", "2020-01-01T00:00:00.000Z"))}
PYTHON = b"what demo has for python"
DIGITS = hashlib.sha256(PYTHON).hexdigest()


def sha512(data):
    return "sha512-" + base64.b64encode(hashlib.sha512(data).digest()).decode()


def document(name):
    versions, times = {}, {}
    for (package, version), (data, at) in NPM.items():
        if package != name:
            continue
        file = f"{name.rsplit('/')[-1]}-{version}.tgz"
        dist = {"tarball": f"{BASE}/npm/{name}/-/{file}", "integrity": sha512(data), "shasum": hashlib.sha1(data).hexdigest()}
        if name == "liar":
            # Another content than the hash says.
            dist["integrity"] = sha512(b"something else")
        elif name == "thief":
            # The file of another package, with its right hash.
            dist["tarball"] = f"{BASE}/npm/secret/-/secret-1.0.0.tgz"
            dist["integrity"] = sha512(NPM["secret", "1.0.0"][0])
        elif name == "weak":
            dist["integrity"] = "sha1-" + base64.b64encode(hashlib.sha1(data).digest()).decode()
        elif name == "private":
            dist["tarball"] = f"http://169.254.169.254/latest/-/private-1.0.0.tgz"
        versions[version], times[version] = {"name": name, "version": version, "dist": dist}, at
    if not versions:
        return None
    latest = sorted(versions)[-1]
    return {"name": name, "dist-tags": {"latest": latest, "evil": "../../secret", "next": "9.9.9"}, "versions": versions, "time": times}


class Mirror(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, body, status=200, kind="application/octet-stream", more=()):
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        for name, value in more:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        path = self.path.split("?")[0]
        if path == "/asked":
            return self.answer(json.dumps(asked).encode(), kind="application/json")
        asked.append(self.path)
        if path == "/simple/demo/":
            return self.answer(f'<a href="/files/demo-1.0.tar.gz#sha256={DIGITS}">demo-1.0.tar.gz</a>'.encode(), kind="text/html")
        if path == "/files/demo-1.0.tar.gz":
            return self.answer(PYTHON)
        if path.startswith("/npm/"):
            return self.npm(path[5:].replace("%2f", "/").replace("%2F", "/"))
        if path.startswith("/debian/"):
            # It has packages wherever they are looked for, in any case.
            name = path.rsplit("/", 1)[-1].lower()
            if "nmap" in name:
                return self.answer(b"the package nmap")
            if "curl" in name:
                return self.answer(b"the package curl")
            if name in ("inrelease", "packages"):
                return self.answer(b"an index")
        self.answer(b"", 404)

    do_HEAD = do_GET

    def npm(self, rest):
        name, _, file = rest.partition("/-/")
        if not file:
            found = document(name)
            return self.answer(json.dumps(found).encode(), kind="application/json") if found else self.answer(b"{}", 404)
        if name == "wanderer":
            return self.answer(b"", 302, more=[("location", "http://169.254.169.254/latest/meta-data/")])
        for (package, version), (data, _) in NPM.items():
            if package == name and file == f"{name.rsplit('/')[-1]}-{version}.tgz":
                return self.answer(data)
        self.answer(b"", 404)


server = http.server.ThreadingHTTPServer((sys.argv[1], int(sys.argv[2])), Mirror)
print("ready", flush=True)
server.serve_forever()
