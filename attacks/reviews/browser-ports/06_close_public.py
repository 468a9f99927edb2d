"""A port is public, a stranger's page has opened a WebSocket, an event stream and a download. The owner closes the port. What goes on?"""
import time
from common import *
print("made public:", public("VICTIM", 8000, True))
with browser() as c:
    e = c.new_page(); e.goto(login("EVIL")); e.goto(origin("EVIL") + page())
    V = origin("VICTIM")
    e.evaluate(f"window.got=[];let s=new WebSocket('{V.replace('http','ws',1)}/ws');s.onmessage=x=>got.push([Date.now(),'ws']);s.onclose=()=>got.push([Date.now(),'ws closed']);0")
    p = c.new_page(); p.goto(V + "/"); p.evaluate("window.got=[];fetch('/sse').then(async x=>{const q=x.body.getReader();for(;;){const z=await q.read();if(z.done)break;got.push([Date.now(),'sse'])}got.push([Date.now(),'sse ended'])}).catch(x=>got.push([Date.now(),''+x]));0")
    time.sleep(2)
    print("closed:", public("VICTIM", 8000, False)); at = time.time() * 1000
    print("a new request of the same page:", p.evaluate("fetch('/echo').then(x=>x.status)"))
    time.sleep(15)
    for name, q in (("WebSocket of evil's page", e), ("event stream", p)):
        got = q.evaluate("got"); late = [x for x in got if x[0] > at + 1000]
        print(f"{name}: messages more than 1 s after closing: {len(late)}, last {((late[-1][0] - at) / 1000 if late else 0):.0f} s after, ended: {any('closed' in x[1] or 'ended' in x[1] for x in got)}")
