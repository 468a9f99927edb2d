"""Streams opened with a key that is then rotated: docs/authority.md says that they are cut when the overlap is over.
Overlap 0 and 2 s; events, a watch, an exec's output. Control: the same streams, and the key revoked."""
from common import *
s = sandbox()
ex = call("POST", f"/v1/sandboxes/{s}/execs", {"argv": ["sh", "-c", "while :; do date +%s; sleep 1; done"]})[1]["id"]
paths = {"events": "/v1/events", "watch": f"/v1/sandboxes/{s}/files/watch?path=/workspace", "output": f"/v1/sandboxes/{s}/execs/{ex}/output?follow=true"}
def streams(key):
    return {n: open_raw(f"GET {p} HTTP/1.1\r\nhost: {HOST}\r\naccept: application/x-ndjson\r\nauthorization: Bearer {key}\r\n\r\n") for n, p in paths.items()}
def look(label, all_, seconds):
    end = {}
    for n, sock in all_.items():
        got, ended = drain(sock, seconds / len(all_))
        end[n] = ("ENDED" if ended else "OPEN", len(got), got[-60:])
    for n, v in end.items(): print(f"  {label} {n}: {v}")
for how in ("revoke", "rotate 0", "rotate 2000"):
    kid, key = new_key("read")
    all_ = streams(key)
    time.sleep(1)
    for sock in all_.values(): drain(sock, .3)
    if how == "revoke": print(how, revoke(kid))
    else:
        st, a, _ = rotate(kid, int(how.split()[1])); print(how, st)
    time.sleep(4)
    print(" fresh request with the old key:", call("GET", "/v1/sandboxes", key=key)[0])
    # events need something to happen
    call("PUT", f"/v1/sandboxes/{s}/files/content?path=/workspace/x{time.time()}", raw=b"x")
    extra = sandbox(); stop(extra)
    look(how, all_, 9)
print("20 s later, streams of the last rotation:"); time.sleep(20); look("later", all_, 6)
stop(s)
