"""Ports over plain HTTP below a domain that is not localhost (`domain = "http://…"`, or plain_http_anywhere): browsers send no Sec-Fetch-* there.
Evil's page includes victim's private port as script, picture and frame. PORTS must be such an address."""
import time
from common import *
V = origin("VICTIM"); mark = "m" + str(int(time.time()))
sec = r("var STOLEN='private-of-victim'", [["content-type", "text/javascript"], NOSTORE, ["x-m", mark]])
with browser() as c:
    v = c.new_page(); v.goto(login("VICTIM")); print("control, own page:", v.evaluate("fetch('/echo').then(x=>x.status)"))
    e = c.new_page(); e.goto(login("EVIL")); e.goto(origin("EVIL") + page(html=f"<iframe src='{V}/framed-{mark}'></iframe>"))
    print("script:", e.evaluate(f"new Promise(d=>{{let s=document.createElement('script');s.src={json.dumps(V + sec)};s.onload=()=>d('loaded '+window.STOLEN);s.onerror=()=>d('refused');document.head.append(s)}})"))
    print("fetch cors include:", e.evaluate(f"fetch('{V}/a-{mark}',{{credentials:'include'}}).then(x=>x.status).catch(x=>''+x)"))
    print("fetch no-cors POST:", e.evaluate(f"fetch('{V}/b-{mark}',{{method:'POST',mode:'no-cors',credentials:'include',body:'x'}}).then(x=>x.type).catch(x=>''+x)"))
    print("fetch no-cors GET :", e.evaluate(f"fetch('{V}/c-{mark}',{{mode:'no-cors',credentials:'include'}}).then(x=>x.type).catch(x=>''+x)"))
    print("WebSocket         :", e.evaluate(f"new Promise(d=>{{let s=new WebSocket('{V.replace('http','ws',1)}/ws?{mark}');s.onopen=()=>d('open');s.onerror=()=>d('refused')}})"))
    time.sleep(1)
    print("frames of evil's page:", [f.evaluate("document.body.innerText.slice(0,60)") for f in e.frames[1:]])
print("what victim's application was asked:", [(q["m"], q["p"][:40].replace(mark, "M"), [k for k, _ in q["h"] if k.lower().startswith("sec-fetch")]) for q in json.loads(inside("VICTIM", "/log")[2]) if mark in q["p"]])
