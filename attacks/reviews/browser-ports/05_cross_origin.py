"""Evil's page asks victim's private port and the API by every way that a page has, with the viewer's cookie."""
import time
from common import *
V, A = origin("VICTIM"), f"{SCHEME}://api.{REST}"
public("VICTIM", 9000, False)
with browser() as c:
    v = c.new_page(); v.goto(login("VICTIM"))
    e = c.new_page(); e.goto(login("EVIL")); e.goto(origin("EVIL") + page())
    def js(name, code): 
        try: print(f"{name:44}", e.evaluate(code))
        except Exception as x: print(f"{name:44}", str(x).split(chr(10))[0][:100])
    mark = "/x-" + str(time.time())
    js("fetch cors include", f"fetch('{V}{mark}', {{credentials:'include'}}).then(x=>x.text()).catch(x=>''+x)")
    js("fetch no-cors include", f"fetch('{V}{mark}', {{credentials:'include', mode:'no-cors'}}).then(x=>x.type).catch(x=>''+x)")
    js("POST no-cors include", f"fetch('{V}{mark}', {{method:'POST', credentials:'include', mode:'no-cors', body:'x'}}).then(x=>x.type).catch(x=>''+x)")
    js("fetch keepalive / beacon", f"navigator.sendBeacon('{V}{mark}', 'x')")
    js("own redirect to victim, cors", f"fetch({json.dumps(r('', [['location', V + mark], ['access-control-allow-origin', '*']], 302))}, {{credentials:'include'}}).then(x=>x.text()).catch(x=>''+x)")
    js("img", f"new Promise(d=>{{let i=new Image();i.onload=()=>d('loaded');i.onerror=()=>d('refused');i.src='{V}{mark}'}})")
    js("script type=module", f"import('{V}{mark}').then(()=>'loaded').catch(x=>''+x)")
    js("css", f"new Promise(d=>{{let l=document.createElement('link');l.rel='stylesheet';l.href='{V}{mark}';l.onload=()=>d('loaded');l.onerror=()=>d('refused');document.head.append(l)}})")
    js("EventSource withCredentials", f"new Promise(d=>{{let s=new EventSource('{V}/sse?{mark}',{{withCredentials:true}});s.onmessage=x=>d(x.data);s.onerror=()=>d('refused')}})")
    js("WebSocket", f"new Promise(d=>{{let s=new WebSocket('{V.replace('http','ws',1)}/ws?{mark}');s.onmessage=x=>d(x.data);s.onerror=()=>d('refused')}})")
    js("WebSocket from a worker", f"new Promise(d=>{{let w=new Worker(URL.createObjectURL(new Blob([`let s=new WebSocket('{V.replace('http','ws',1)}/ws?{mark}');s.onmessage=x=>postMessage(x.data);s.onerror=()=>postMessage('refused')`])));w.onmessage=x=>d(x.data)}})")
    js("sandboxed frame, fetch (Origin: null)", f"new Promise(d=>{{onmessage=x=>d(x.data);let f=document.createElement('iframe');f.sandbox='allow-scripts';f.srcdoc=`<script>fetch('{V}{mark}',{{credentials:'include',mode:'no-cors',method:'POST'}}).then(x=>parent.postMessage(x.type,'*')).catch(x=>parent.postMessage(''+x,'*'))<\\/script>`;document.body.append(f)}})")
    js("iframe, object, embed", f"(async()=>{{for(const t of ['iframe','object','embed']){{let f=document.createElement(t);f[t=='object'?'data':'src']='{V}{mark}-'+t;document.body.append(f)}};await new Promise(d=>setTimeout(d,1500));return 'asked'}})()")
    js("form POST to _blank", f"(()=>{{let f=document.createElement('form');f.method='POST';f.action='{V}{mark}-form';f.target='_blank';document.body.append(f);f.submit();return 'sent'}})()")
    js("speculation rules: prefetch, prerender", f"(async()=>{{for(const k of ['prefetch','prerender']){{let s=document.createElement('script');s.type='speculationrules';s.textContent=JSON.stringify({{[k]:[{{source:'list',urls:['{V}{mark}-'+'k'+k],eagerness:'immediate'}}]}});document.head.append(s)}};await new Promise(d=>setTimeout(d,2500));return 'asked'}})()")
    js("window.open, then look", f"(async()=>{{let w=window.open('{V}/open{mark.replace('/','-')}');await new Promise(d=>setTimeout(d,1500));try{{return w.document.body.innerText}}catch(x){{return x.name}}}})()")
    js("document.domain", f"(()=>{{try{{document.domain='{REST.split(':')[0]}';return document.domain==location.hostname?'ignored':'set'}}catch(x){{return x.name}}}})()")
    print("-- the API, at api.DOMAIN and at its own address")
    for base in (A, API):
        js("fetch cors /v1/sandboxes", f"fetch('{base}/v1/sandboxes', {{credentials:'include'}}).then(x=>x.status).catch(x=>''+x)")
        js("preflight with bellglass headers", f"fetch('{base}/', {{headers:{{'bellglass-sandbox':'{E['VICTIM_ID']}','bellglass-port':'8000','bellglass-token':'x'}}}}).then(x=>x.status).catch(x=>''+x)")
        js("cors /healthz, /openapi.json", f"Promise.all(['/healthz','/openapi.json'].map(p=>fetch('{base}'+p).then(x=>x.status).catch(x=>''+x)))")
        js("WebSocket /mcp, terminals", f"new Promise(d=>{{let s=new WebSocket('{base.replace('http','ws',1)}/v1/sandboxes/{E['VICTIM_ID']}/terminals');s.onopen=()=>d('open');s.onerror=()=>d('refused')}})")
    time.sleep(1)
seen = [(q["m"], q["p"], dict((k.lower(), x) for k, x in q["h"])) for q in json.loads(inside("VICTIM", "/log")[2]) if mark.split("-")[1] in q["p"]]
print("what reached victim's application:", [(m, p.replace(mark, "/MARK"), h.get("sec-fetch-dest"), h.get("sec-purpose")) for m, p, h in seen])
