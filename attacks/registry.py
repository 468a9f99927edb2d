# A registry that lies. Arguments: address, port, a certificate with its key. The name of a repository says what is wrong with it.
import gzip, hashlib, http.server, io, json, ssl, sys, tarfile, threading

META = "http://169.254.169.254/latest/meta-data/"
count = {"asked": 0}


def digest(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def layer(build):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        build(archive)
    return out.getvalue()


def add(archive, name, content=b"", kind=tarfile.REGTYPE, target="", pax=None):
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname, info.mode = kind, len(content), target, 0o644
    info.pax_headers = pax or {}
    archive.addfile(info, io.BytesIO(content))


def plain(archive):
    add(archive, "srv/hello", b"hello")


def bomb(archive):
    for number in range(100_000):
        add(archive, f"srv/{number % 100}/.wh.{number}")


def things(archive):
    plain(archive)
    add(archive, "dev", kind=tarfile.SYMTYPE, target="/etc")
    add(archive, "dev/planted", b"x")
    for at, kind in enumerate((tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE)):
        add(archive, f"srv/node{at}", kind=kind)
    add(archive, "srv/marked", b"x", pax={"SCHILY.xattr.security.capability": "x", "SCHILY.xattr.user.overlay.opaque": "y"})


CONTENTS = {"bomb": bomb, "things": things}
WISHES = {
    "entrypoint": {"Entrypoint": ["x" * (1 << 20)]}, "user": {"User": "0x0"}, "workdir": {"WorkingDir": "/proc/self/fd/8"},
    "variables": {"Env": ["LD_PRELOAD=/srv/evil.so", "A=" + "x" * (1 << 20)]},
}


def image(name):
    content = layer(lambda archive: (CONTENTS.get(name, plain)(archive), add(archive, f"srv/{name}")))
    layers = [content] * {"many": 10_000, "zero": 0}.get(name, 1)
    config = json.dumps({"architecture": "amd64", "os": "linux", "config": WISHES.get(name, {}),
                         "rootfs": {"type": "layers", "diff_ids": [digest(one) for one in layers]}}).encode()
    if name == "hugeconfig":
        config += b" " * (100 << 20)
    blobs = {digest(config): config, digest(content): content}
    described = lambda kind, data, size=None: {"mediaType": kind, "digest": digest(data), "size": len(data) if size is None else size}
    manifest = json.dumps({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": described("application/vnd.oci.image.config.v1+json", config, 100 if name == "liedconfig" else None),
        "layers": [described("application/vnd.oci.image.layer.v1.tar", one) for one in layers]}).encode()
    if name == "mismatch":
        blobs[digest(content)] = content.replace(b"hello", b"HELLO")
    if name == "mismatchconfig":
        blobs[digest(config)] = config.replace(b"linux", b"Linux")
    if name == "short":
        blobs[digest(content)] = content[:100]
    return manifest, blobs


class Registry(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def say(self, status, body=b"", kind="application/octet-stream", **headers):
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.send_header("content-type", kind)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def endless(self):
        self.send_response(200)
        self.send_header("content-type", "application/vnd.oci.image.manifest.v1+json")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        try:
            while True:
                self.wfile.write(b" " * 65536)
        except OSError:
            pass

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        count["asked"] += 1
        parts = self.path.strip("/").split("/")
        name = parts[1] if len(parts) > 1 else ""
        if self.path == "/asked":
            return self.say(200, json.dumps(count["asked"]).encode())
        if self.path == "/v2/" or name in ("realm", "loop", "realmprivate"):
            realm = {"realm": META + "token", "realmprivate": "https://private.example/token"}.get(name)
            if name in ("loop", "realm", "realmprivate"):
                challenge = f'Bearer realm="{realm}",service="x"' if realm else 'Basic realm="again"'
                return self.say(401, b"{}", www_authenticate=challenge)
            return self.say(200, b"{}")
        if parts[2:3] == ["manifests"]:
            if name == "endlessmanifest":
                return self.endless()
            if name == "redirect":
                return self.say(307, b"", location=META)
            if name == "circular":
                index = json.dumps({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [{
                    "mediaType": "application/vnd.oci.image.index.v1+json", "digest": "sha256:" + "a" * 64, "size": 100,
                    "platform": {"os": "linux", "architecture": "amd64"}}]}).encode()
                return self.say(200, index, "application/vnd.oci.image.index.v1+json")
            manifest, _ = image(name)
            return self.say(200, manifest, "application/vnd.oci.image.manifest.v1+json", docker_content_digest=digest(manifest))
        if parts[2:3] == ["blobs"]:
            if name == "redirectblob":
                return self.say(307, b"", location=META)
            if name == "redirectname":
                return self.say(307, b"", location="https://meta.example/")
            if name == "endless":
                return self.endless()
            _, blobs = image(name)
            return self.say(200, blobs.get(parts[3], b""))
        self.say(404)


server = http.server.ThreadingHTTPServer((sys.argv[1], int(sys.argv[2])), Registry)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[3])
server.socket = context.wrap_socket(server.socket, server_side=True)
print("ready", flush=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
sys.stdin.read()
