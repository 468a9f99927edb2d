"""What the scripts share. Environment: BELLGLASS_URL (API), PORTS (scheme://DOMAIN:PORT of the ports), VICTIM_ID, VICTIM_TOKEN, VICTIM_KEY,
EVIL_ID, EVIL_TOKEN, EVIL_KEY (setup.sh writes them), CHROMIUM, SPKI (optional: hash of the server's certificate key)."""
import json, os, ssl, shutil, tempfile, urllib.request, urllib.error
from contextlib import contextmanager
from urllib.parse import quote, urlsplit
from playwright.sync_api import sync_playwright
API = os.environ["BELLGLASS_URL"]
SCHEME, REST = os.environ["PORTS"].split("://")
E = os.environ
def origin(who, port=8000): return f"{SCHEME}://{port}-{E[who + '_ID']}.{REST}"
def login(who, port=8000, path="/"): return origin(who, port) + path + ("&" if "?" in path else "?") + "bellglass_token=" + E[who + "_TOKEN"]
def r(body="", headers=(), status=200): return "/r?d=" + quote(json.dumps({"status": status, "headers": list(headers), "body": body}))
HTML = ["content-type", "text/html"]
NOSTORE = ["cache-control", "no-store"]
def page(script="", extra=(), html=""): return r("<!doctype html><title>x</title>" + html + "<script>" + script + "</script>", [HTML, NOSTORE, *extra])
@contextmanager
def browser(*more):
    d = tempfile.mkdtemp(prefix="pass-chromium-")
    args = ["--no-sandbox", "--host-resolver-rules=MAP *.test 127.0.0.1, MAP *.localhost 127.0.0.1", *more]
    if E.get("SPKI"): args.append("--ignore-certificate-errors-spki-list=" + E["SPKI"])
    try:
        with sync_playwright() as p:
            c = p.chromium.launch_persistent_context(d, executable_path=E.get("CHROMIUM", "/usr/bin/chromium"), headless=True, args=args, service_workers="allow")
            c.set_default_timeout(15000)
            try: yield c
            finally: c.close()
    finally: shutil.rmtree(d, ignore_errors=True)
def ask(method, url, headers=None, data=None):
    """A request without a browser, to the API's address (127.0.0.1 in both set-ups)."""
    ctx = ssl._create_unverified_context()
    q = urllib.request.Request(url, method=method, headers=headers or {}, data=data)
    try:
        with urllib.request.urlopen(q, context=ctx, timeout=15) as a: return a.status, dict(a.headers), a.read().decode(errors="replace")
    except urllib.error.HTTPError as e: return e.code, dict(e.headers), e.read().decode(errors="replace")
def api(method, path, who="VICTIM", data=None):
    h = {"authorization": "Bearer " + E[who + "_KEY"]}
    if data is not None: h["content-type"] = "application/json"
    return ask(method, API + path, h, json.dumps(data).encode() if data is not None else None)
def inside(who, path, port=8000):
    """What the application answers to its own project's key."""
    return ask("GET", API + path, {"authorization": "Bearer " + E[who + "_KEY"], "bellglass-sandbox": E[who + "_ID"], "bellglass-port": str(port)})
def public(who, port, on): return api("PUT", f"/v1/sandboxes/{E[who + '_ID']}/ports/{port}", who, {"public": on})[0]
