"""Cookies: evil's page tries to replace, evict, clear or drown the cookie by which the viewer reaches victim's port."""
import time
from common import *
DOM = REST.split(":")[0]
name = "__Host-bellglass" if SCHEME == "https" else "bellglass"
def jar(c): return [k for k in c.cookies() if k["name"] == name and E["VICTIM_ID"] in k["domain"]]
def state(c):
    v = c.new_page()
    try: a = v.goto(origin("VICTIM") + "/echo"); s = a.status
    except Exception as x: s = str(x).split("\n")[0][:70]
    v.close(); return s
import sys
for what in sys.argv[1:] or ("control", "toss", "hostprefix", "evict-js", "evict-medium", "evict-header", "clear-site-data", "bomb"):
    with browser() as c:
        v = c.new_page(); v.goto(login("VICTIM"))
        e = c.new_page(); e.goto(login("EVIL")); e.goto(origin("EVIL") + page())
        before = len(jar(c)); note = ""
        if what == "toss":
            e.evaluate(f"document.cookie = '{name}=evil; domain={DOM}; path=/'; document.cookie = 'bellglass=evil; domain={DOM}; path=/echo'; document.cookie='bellglass =evil2; domain={DOM}; path=/'")
            note = f"evil sees of them: {e.evaluate('document.cookie')!r}"
        if what == "hostprefix":
            e.goto(origin("EVIL") + page("", [["set-cookie", f"__Host-bellglass=evil; Domain={DOM}; Path=/; Secure"], ["set-cookie", f"__host-bellglass=evil; Domain={DOM}; Path=/; Secure"], ["set-cookie", f"=__Host-bellglass=evil; Domain={DOM}; Path=/; Secure"]]))
            note = f"evil sees of them: {e.evaluate('document.cookie')!r}"
        if what == "evict-js":
            e.evaluate(f"for (let i = 0; i < 400; i++) document.cookie = 'k' + i + '=1; path=/; max-age=9999; priority=high'")
        if what == "evict-medium":
            e.evaluate(f"for (let i = 0; i < 400; i++) document.cookie = 'k' + i + '=1; path=/; max-age=9999' + (location.protocol == 'https:' ? '; secure' : '')")
        if what == "evict-header":
            for n in range(4): e.goto(origin("EVIL") + page("", [["set-cookie", f"h{n}x{i}=1; Path=/; Priority=High"] for i in range(100)]))
        if what == "clear-site-data":
            e.goto(origin("EVIL") + page("", [["clear-site-data", '"cookies"']])); time.sleep(1)
        if what == "bomb":
            e.evaluate(f"for (let i = 0; i < 30; i++) document.cookie = 'b' + i + '=' + 'x'.repeat(4000) + '; path=/; domain={DOM}; max-age=9999'")
            p = c.new_page()
            try: note = f"api.{DOM}/healthz: {p.goto(f'{SCHEME}://api.{REST}/healthz').status}; with the token in the address again: {p.goto(login('VICTIM')).status}"
            except Exception as x: note = str(x).split("\n")[0][:90]
        print(f"{what:16} victim's cookie before {before}, after {len(jar(c))}; viewer's next look at victim: {state(c)} {note}")
        if what in ("toss",):
            got = [dict((k.lower(), x) for k, x in q["h"]).get("cookie") for q in json.loads(inside("VICTIM", "/log")[2])][-1]
            print("                 cookies that victim's application got:", got)
