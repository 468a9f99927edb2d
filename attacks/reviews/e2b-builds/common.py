"""What the scripts share. Environment: BELLGLASS_URL, BELLGLASS_API_KEY (an administrator's), BELLGLASS (the executable), BELLGLASS_DATA (only where a script looks
at what is left on the disk)."""
import hashlib, io, json, os, sys, tarfile, time, urllib.request, urllib.error, subprocess
URL, KEY = os.environ["BELLGLASS_URL"], os.environ["BELLGLASS_API_KEY"]
def ask(method, path, data=None, key=KEY, raw=None, headers=None, timeout=120):
    h = {} if key is None else {"x-api-key": key}
    if data is not None: raw = json.dumps(data).encode(); h["content-type"] = "application/json"
    h.update(headers or {})
    q = urllib.request.Request(path if path.startswith("http") else URL + path, method=method, data=raw, headers=h)
    try:
        with urllib.request.urlopen(q, timeout=timeout) as a: b = a.read(); s = a.status
    except urllib.error.HTTPError as e: b = e.read(); s = e.code
    except Exception as e: return 0, repr(e)[:100]
    try: return s, json.loads(b) if b else None
    except ValueError: return s, b[:300]
def request(name, key=KEY, **more): return ask("POST", "/v3/templates", {"name": name, **more}, key)
def begin(name, build, steps, key=KEY, **more): return ask("POST", f"/v2/templates/{name}/builds/{build}", {"fromTemplate": "base", "steps": steps, **more}, key)
def RUN(cmd, user=None): return {"type": "RUN", "args": [cmd] + ([user] if user else [])}
def COPY(archive, src, dst, owner="", mode=""): return {"type": "COPY", "args": [src, dst, owner, mode], "filesHash": archive}
def wait(name, build, seconds=120, key=KEY):
    end = time.time() + seconds; s = {}
    while time.time() < end:
        code, s = ask("GET", f"/templates/{name}/builds/{build}/status", key=key)
        if code != 200 or s["status"] in ("ready", "error"): break
        time.sleep(.5)
    return s
def build(name, steps, seconds=120, **more):
    limits = {k: more.pop(k) for k in ("cpuCount", "memoryMB", "minFreeDiskMB") if k in more}
    s, a = request(name, **limits)
    if s != 202: return {"status": f"refused {s}", "logs": [json.dumps(a)[:200]]}
    s, b = begin(name, a["buildID"], steps, **more)
    if s != 202: return {"status": f"refused {s}", "logs": [json.dumps(b)[:200]]}
    return wait(name, a["buildID"], seconds)
def said(s, n=3): return s.get("status", "?") + " | " + " / ".join(x[:160] for x in s.get("logs", [])[-n:])
def upload(archive, raw, template="x"):
    s, a = ask("GET", f"/templates/{template}/files/{archive}")
    return ask("PUT", a["url"], raw=raw, key=None) if s == 201 else (s, a)
def tar(entries, gz=True):
    out = io.BytesIO(); t = tarfile.open(fileobj=out, mode="w:gz" if gz else "w", format=tarfile.PAX_FORMAT)
    for name, kind, value in entries:
        i = tarfile.TarInfo(name); i.mode = 0o644
        if kind == "file": i.size = len(value); t.addfile(i, io.BytesIO(value)); continue
        i.type = {"dir": tarfile.DIRTYPE, "sym": tarfile.SYMTYPE, "hard": tarfile.LNKTYPE, "chr": tarfile.CHRTYPE, "fifo": tarfile.FIFOTYPE}[kind]
        if kind in ("sym", "hard"): i.linkname = value
        if kind == "chr": i.devmajor, i.devminor = value
        if kind == "dir": i.mode = 0o755
        t.addfile(i)
    t.close(); return out.getvalue()
def name_of(raw): return hashlib.sha256(raw).hexdigest()
def run(template, cmd, key=None, timeout=60):
    """A command in a fresh sandbox of the template."""
    env = {**os.environ, "BELLGLASS_SERVER": URL, "BELLGLASS_API_KEY": key or KEY}
    p = subprocess.run([os.environ.get("BELLGLASS", "bellglass"), "run", "--template", template, "--", "sh", "-c", cmd], env=env, capture_output=True, text=True, timeout=timeout)
    return (p.stdout + p.stderr).strip()[-600:], p.returncode
