"""Rotation of an expired key, of a rotated key, of a revoked key; two rotations and a revocation at once; extreme lifetimes."""
import threading
from common import *
kid, key = new_key("admin", valid_ms=1000); time.sleep(1.5)
print("expired key:", call("GET", "/v1/keys", key=key)[0], "| listed:", any(k["id"] == kid for k in call("GET", "/v1/keys")[1]["items"]))
st, a, _ = rotate(kid, 0); print("rotate an expired key:", st, "-> new secret works:", call("GET", "/v1/keys", key=a.get("secret"))[0] if st == 201 else a)
kid, key = new_key("write"); revoke(kid); print("rotate a revoked key:", rotate(kid, 0)[0])
kid, key = new_key("write"); rotate(kid, 0); st, a, _ = rotate(kid, 600000); print("rotate again a key whose overlap (0) is over:", st, "| old key:", call("GET", "/v1/sandboxes", key=key)[0])
# races: rotate with a long overlap against rotate with none, 40 rounds
back = 0; both = 0
for n in range(40):
    kid, key = new_key("write"); out = []
    t = [threading.Thread(target=lambda o=o: out.append((o, rotate(kid, o)[0]))) for o in (0, 86400000)]
    [x.start() for x in t]; [x.join() for x in t]
    time.sleep(.02); alive = call("GET", "/v1/sandboxes", key=key)[0] == 200
    both += [x[1] for x in out] == [201, 201]; back += alive
print(f"rotate(0) and rotate(1 day) at once, 40 rounds: both succeeded {both}, old key still valid afterwards {back}")
# rotate against revoke: afterwards the old key must be dead
def use(key):
    for _ in range(5):
        try: call("GET", "/v1/sandboxes", key=key)
        except OSError: pass  # an answer that was cut
alive = 0; new_alive = 0
for n in range(40):
    kid, key = new_key("write"); out = {}
    t = [threading.Thread(target=lambda: out.update(r=rotate(kid, 86400000))), threading.Thread(target=lambda: out.update(d=revoke(kid))), threading.Thread(target=use, args=(key,))]
    [x.start() for x in t]; [x.join() for x in t]
    alive += call("GET", "/v1/sandboxes", key=key)[0] == 200
    new_alive += out["r"][0] == 201 and call("GET", "/v1/sandboxes", key=out["r"][1]["secret"])[0] == 200
print(f"rotate, revoke and use at once, 40 rounds: old key alive {alive}; rotation won and new key lives {new_alive}")
for v in (0, 1, 2**63 - 1, 2**63, 2**64 - 1):
    st, a, _ = call("POST", "/v1/keys", {"project": "default", "role": "read", "label": "x", "valid_ms": v})
    if st != 201: print("valid_ms", v, st, str(a)[:100]); continue
    k = a["secret"]; i = a.get("key", a)["id"]
    sock = open_raw(f"GET /v1/events HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {k}\r\n\r\n")
    got, ended = drain(sock, 1)
    print("valid_ms", v, st, "use:", call("GET", "/v1/sandboxes", key=k)[0], "stream:", got[:15], "ended" if ended else "open", "rotate:", rotate(i, 0)[0]); revoke(i)
print("keys still listed:", call("GET", "/v1/keys")[0], "healthz", call("GET", "/healthz", key="")[0])
for k in call("GET", "/v1/keys")[1]["items"]:
    if k["label"] in ("attack", "x"): revoke(k["id"])
