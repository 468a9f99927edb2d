"""Everything a read key can get: is any token, key, ticket or secret value in it? All GET routes of the description, with real ids."""
import re
from common import *
kid, write = new_key("write"); rid, read = new_key("read")
sb = call("POST", "/sandboxes", {"templateID": "base", "timeout": 300, "secure": True, "envVars": {"A": "b"}}, key=write)[1]; s = sb["sandboxID"]
port = call("GET", f"/v1/sandboxes/{s}/ports/8000", key=write)[1]["token"]
call("PUT", "/v1/secrets/PROBE", {"value": "sekret-value-1234567890"}, key=write)
ex = call("POST", f"/v1/sandboxes/{s}/execs", {"argv": ["sh", "-c", "env"]}, key=write)[1].get("id", "x")
sess = call("POST", "/v1/sessions", {"set": "interpreter"}, key=write)[1].get("id", "x")
marks = {"agent": sb["envdAccessToken"], "traffic": sb.get("trafficAccessToken"), "port": port, "write key": write[4:], "read key": read[4:], "secret": "sekret-value-1234567890"}
doc = call("GET", "/openapi.json", key="")[1]
paths = [p for p, m in doc["paths"].items() if "get" in m] + ["/sandboxes", "/v2/sandboxes", f"/sandboxes/{s}", f"/sandboxes/{s}/logs", f"/v2/sandboxes/{s}/logs", f"/sandboxes/{s}/metrics", "/templates", "/secrets", "/snapshots", "/volumes", "/metrics", "/health"]
tried = 0
for p in paths:
    for extra in ("", "?all=true", "?path=/"):
        q = p.replace("{sandbox}", s).replace("{exec}", ex).replace("{session}", sess).replace("{port}", "8000").replace("{name}", "probe").replace("{context}", "x").replace("{run}", "x").replace("{number}", "0") + extra
        sock = open_raw(f"GET {q} HTTP/1.1\r\nhost: {HOST}:{PORT}\r\nauthorization: Bearer {read}\r\nconnection: close\r\n\r\n"); got = drain(sock, 1)[0]; tried += 1; sock.close()
        hit = [n for n, v in marks.items() if v and v.encode() in got]
        if hit or re.search(rb"bg[kt]_[0-9a-f]{8}", got): print("FOUND in", q.replace(s, "SANDBOX"), hit)
print("GET routes tried:", tried)
# what a read key may do by POST that the table calls `key read`
for m, p in (("POST", f"/sandboxes/{s}/fork"), ("POST", f"/sandboxes/{s}/snapshots"), ("POST", "/secrets"), ("POST", "/templates"), ("POST", "/volumes"), ("DELETE", "/volumes/x"), ("DELETE", "/secrets/PROBE"), ("PATCH", "/secrets/PROBE"), ("DELETE", "/templates/base"), ("PATCH", "/templates/base"), ("POST", "/templates/tags"), ("PUT", "/secrets/PROBE")):
    print("  read:", m, p.replace(s, "SANDBOX"), call(m, p, {}, key=read)[0])
print("the secret is still there:", [x["name"] for x in call("GET", "/v1/secrets", key=read)[1]["items"]])
call("DELETE", "/v1/secrets/PROBE", key=write); call("DELETE", "/v1/sessions/" + sess, key=write); stop(s); revoke(kid); revoke(rid)
