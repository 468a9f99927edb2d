"""Idempotency keys and ids that are guessed: another key, role and project; and what a key of another project sees of ids that exist."""
from common import *
project("idem"); a, ka = new_key("write"); b, kb = new_key("write", "idem"); r, kr = new_key("read")
i = {"idempotency-key": "same-words"}
st1, s1, _ = call("POST", "/v1/sandboxes", {"template": "base"}, key=ka, headers=i); st2, s2, _ = call("POST", "/v1/sandboxes", {"template": "base"}, key=kb, headers=i)
print("two projects, one idempotency key: same sandbox", s1["id"] == s2["id"]); print("read key:", call("POST", "/v1/sandboxes", {"template": "base"}, key=kr, headers=i)[0])
e1 = call("POST", f"/v1/sandboxes/{s1['id']}/execs", {"argv": ["true"]}, key=ka, headers=i)[1]["id"]; e2 = call("POST", f"/v1/sandboxes/{s2['id']}/execs", {"argv": ["true"]}, key=kb, headers=i)[1]["id"]
print("exec ids from the same words are equal in two projects:", e1 == e2, "| read across:", call("GET", f"/v1/sandboxes/{s1['id']}/execs/{e1}", key=kb)[0], call("GET", f"/v1/sandboxes/{s2['id']}/execs/{e1}", key=ka)[0])
real, fake = call("GET", "/v1/sandboxes/" + s1["id"], key=kb), call("GET", "/v1/sandboxes/s" + "a" * 25, key=kb)
print("another's and none:", real[0], fake[0], "| same words:", str(real[1]).replace(s1["id"], "X") == str(fake[1]).replace("s" + "a" * 25, "X"))
print("name of another's sandbox taken:", call("POST", "/v1/sandboxes", {"template": "base", "name": "mine"}, key=ka)[0], call("POST", "/v1/sandboxes", {"template": "base", "name": "mine"}, key=kb)[0])
revoke(a); print("after revocation, replay of the create:", call("POST", "/v1/sandboxes", {"template": "base"}, key=ka, headers=i)[0])
for p, k in (("default", None), ("idem", kb)):
    for x in call("GET", "/v1/sandboxes", key=k)[1]["items"]: call("DELETE", "/v1/sandboxes/" + x["id"], key=k)
revoke(b); revoke(r)
