"""Whose is what: other roles and projects, tickets used twice, for another archive, after their key was revoked; names of templates."""
from common import *
def cli(*a): return subprocess.run([os.environ["BELLGLASS"], *a], env={**os.environ, "BELLGLASS_SERVER": URL, "BELLGLASS_API_KEY": KEY}, capture_output=True, text=True)
import re
def newkey(project, role):
    cli("project", "set", project); o = cli("key", "create", "--project", project, "--role", role); t = o.stdout + o.stderr
    return re.search(r"[0-9a-f]{64}", t)[0], t
wk, _ = newkey("other", "write"); rk, _ = newkey("other", "read"); ak, at = newkey("other", "admin")
s, mine = request("owned"); bid = mine["buildID"]
for who, k in (("write", wk), ("read", rk), ("none", None), ("wrong", "0" * 64)):
    print(f"{who:6}", "request", request("owned2", k)[0], "begin", begin("owned", bid, [RUN("true")], k)[0], "status", ask("GET", f"/templates/owned/builds/{bid}/status", key=k)[0], "files", ask("GET", f"/templates/owned/files/{'a'*64}", key=k)[0], "list", ask("GET", "/templates", key=k)[0])
print("build id with another template's name:", begin("control", bid, [RUN("true")])[0], "an id that never was:", begin("owned", "00000000-0000-4000-a000-000000000000", [])[0], "id with dots:", begin("owned", "..%2f..", [])[0])
raw = tar([("d", "dir", 0), ("d/f", "file", b"v1")]); n = name_of(raw)
u = ask("GET", f"/templates/x/files/{n}")[1]["url"]
print("ticket: for another archive", ask("PUT", u.replace(n, "b" * 64), raw=raw, key=None)[0], "then for its own", ask("PUT", u, raw=raw, key=None)[0])
u = ask("GET", f"/templates/x/files/{n}")[1]["url"]
print("ticket: other template in the path", ask("PUT", u.replace("/templates/x/", "/templates/y/"), raw=raw, key=None)[0], "again", ask("PUT", u, raw=raw, key=None)[0])
u = ask("GET", f"/templates/x/files/{n}")[1]["url"]
print("ticket: twice in the query", ask("PUT", u + "&ticket=" + "0" * 64, raw=raw, key=None)[0], "as a key", ask("GET", "/templates", key=u.split("ticket=")[1])[0], "GET", ask("GET", u, key=None)[0])
u = ask("GET", f"/templates/x/files/{'c'*64}", key=ak)[1]["url"]
ids = [x for x in json.loads(cli("key", "list", "--json").stdout or "[]")] if cli("key", "list", "--json").returncode == 0 else []
s, b = request("revoked", ak); s2 = begin("revoked", b["buildID"], [RUN("sleep 20; echo done-after-revocation > /home/user/r")], ak); time.sleep(3)
s, ks = ask("GET", "/v1/keys", headers={"authorization": "Bearer " + KEY}, key=None)
kid = [k for k in (ks if isinstance(ks, list) else ks.get("keys", ks.get("items", []))) if k.get("project") == "other" and k.get("role") == "admin" and not k.get("revoked_at")]
print("keys:", s, [sorted(k) for k in kid][:1]); 
for k in kid: print("revoke", ask("DELETE", f"/v1/keys/{k['id']}", headers={"authorization": "Bearer " + KEY}, key=None)[0])
print("its key now:", ask("GET", "/templates", key=ak)[0], "ticket of the revoked key:", ask("PUT", u, raw=raw, key=None)[0])
print("its build, which was running:", said(wait("revoked", b["buildID"], 60)), "| the template exists:", ask("GET", "/templates/aliases/revoked")[0])
for name in ("../x", "a/b", "..", ".", "", "A", "ü", "a" * 200, "a b", "x\n", "-rf", "base", "workstation", "code-interpreter-v1", "x:default", "x:evil", "%2e%2e", "con", "a.log", "new-1.part", "0" * 64):
    print(f"name {name[:24]!r:28}", request(name)[0], end="; ")
print()
for t in ("../../etc/passwd", "/etc", "a/../b", "127.0.0.1:17171/v2/x:1", "localhost:17171/x:1", "169.254.169.254/latest:1", "[::1]:17171/x:1", "http://127.0.0.1:17171/x", "2130706433:17171/x:1", "docker.io/library/../../x:1", "oci:/etc:x", "file:///etc/passwd", "evil@sha256:" + "0" * 64):
    for f in ("fromTemplate", "fromImage"):
        s, b = request("ground"); s, a = ask("POST", f"/v2/templates/ground/builds/{b['buildID']}", {f: t, "steps": []}); w = said(wait("ground", b["buildID"], 40), 1) if s == 202 else str(a)[:110]
        print(f"{f:13}{t[:36]:38}", s, w[:190])
