"""Policies that an application sets at its own name (HSTS, Alt-Svc, NEL, CSP reports, Origin-Agent-Cluster), and a cache that outlives the sandbox's token
check: does any of it reach another port or the API?"""
import time
from common import *
with browser() as c:
    e = c.new_page(); e.goto(login("EVIL"))
    e.goto(origin("EVIL") + page("", [["strict-transport-security", "max-age=99999; includeSubDomains; preload"], ["alt-svc", 'h2="127.0.0.1:1"; ma=9999; persist=1'], ["nel", '{"report_to":"x","max_age":9999,"include_subdomains":true}'], ["report-to", '{"group":"x","max_age":9999,"include_subdomains":true,"endpoints":[{"url":"https://evil.test/r"}]}'], ["origin-agent-cluster", "?0"], ["content-security-policy", "upgrade-insecure-requests"], ["accept-ch", "sec-ch-ua-full-version"], ["link", f"<{origin('VICTIM')}/hint>; rel=preload; as=script"]]))
    for who, port in (("EVIL", 8000), ("EVIL", 9000), ("VICTIM", 8000)):
        v = c.new_page()
        try: a = v.goto(login(who, port)); print(who.lower(), port, a.status, urlsplit(v.url).scheme)
        except Exception as x: print(who.lower(), port, str(x).split("\n")[0][:80])
    for u in (API + "/healthz", f"{SCHEME}://api.{REST}/healthz"):
        v = c.new_page()
        try: print("API", v.goto(u).status, urlsplit(v.url).scheme)
        except Exception as x: print("API", str(x).split("\n")[0][:80])
    # framing
    public("VICTIM", 9000, True)
    f = c.new_page(); f.goto(origin("EVIL") + page(html=f"<iframe src='{origin('VICTIM')}/'></iframe><iframe src='{origin('VICTIM', 9000)}/'></iframe><iframe src='{API}/healthz'></iframe>")); time.sleep(1)
    print("frames: private, public, API:", [x.evaluate("document.body.innerText.slice(0,40)") if x.url.startswith("http") else x.url for x in f.frames[1:]])
    public("VICTIM", 9000, False)
    # popup: what a page learns of one that it opened
    o = c.new_page(); o.goto(origin("EVIL") + page())
    print("popup of victim, number of frames that evil counts:", o.evaluate(f"(async()=>{{let w=open({json.dumps(origin('VICTIM') + page(html='<iframe></iframe><iframe></iframe>'))});await new Promise(d=>setTimeout(d,1500));return w.length}})()"))
