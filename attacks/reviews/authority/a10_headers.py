"""Odd ways to show a key: duplicated, empty, in other cases, with spaces, in the query, as a cookie, in two headers; and which one wins."""
from common import *
rid, read = new_key("read"); wid, write = new_key("write")
def ask(*lines, path="/v1/sandboxes", method="GET"):
    sock = open_raw(f"{method} {path} HTTP/1.1\r\nhost: {HOST}\r\nconnection: close\r\n".encode() + b"".join((l if isinstance(l, bytes) else l.encode("latin1")) + b"\r\n" for l in lines) + b"\r\n")
    got = drain(sock, 2)[0]; return got.split(b"\r\n")[0].decode()[9:]
k = write; d = k[4:]
cases = [
 ("control bearer", [f"authorization: Bearer {k}"]), ("control x-api-key", [f"x-api-key: {k}"]),
 ("lower-case scheme", [f"authorization: bearer {k}"]), ("upper-case scheme", [f"AUTHORIZATION: BEARER {k}"]),
 ("two spaces", [f"authorization: Bearer  {k}"]), ("tab", [f"authorization: Bearer\t{k}"]), ("trailing tab", [f"authorization: Bearer {k}\t"]),
 ("no scheme", [f"authorization: {k}"]), ("basic", [f"authorization: Basic {k}"]), ("token", [f"authorization: Token {k}"]),
 ("upper-case digits", [f"authorization: Bearer bgk_{d.upper()}"]), ("upper-case prefix", [f"authorization: Bearer BGK_{d}"]),
 ("e2b_", [f"x-api-key: e2b_{d}"]), ("e2b_bgk_", [f"x-api-key: e2b_{k}"]), ("bgk_e2b_", [f"x-api-key: bgk_e2b_{d}"]), ("bgt_", [f"x-api-key: bgt_{d}"]),
 ("x-api-key with spaces", [f"x-api-key:   {k}   "]), ("x-api-key quoted", [f'x-api-key: "{k}"']), ("comma list", [f"x-api-key: {k}, {k}"]),
 ("same twice", [f"authorization: Bearer {k}", f"authorization: Bearer {k}"]), ("both headers, same", [f"authorization: Bearer {k}", f"x-api-key: {k}"]),
 ("both headers, read and write", [f"authorization: Bearer {read}", f"x-api-key: {write}"]), ("valid and empty x-api-key", [f"authorization: Bearer {k}", "x-api-key:"]),
 ("basic and x-api-key", ["authorization: Basic dXNlcjo=", f"x-api-key: {k}"]), ("underscore name", [f"x_api_key: {k}"]),
 ("obs-fold", [f"authorization: Bearer\r\n {k}"]), ("NUL", [b"authorization: Bearer " + k.encode() + b"\0"]), ("space before colon", [f"authorization : Bearer {k}"]),
 ("high byte", [b"authorization: Bearer " + k.encode() + b"\xff"]), ("cookie", [f"cookie: authorization=Bearer {k}; bellglass={k}; x-api-key={k}"]),
 ("proxy-authorization", [f"proxy-authorization: Bearer {k}"]), ("x-access-token", [f"x-access-token: {k}"]), ("bellglass-token", [f"bellglass-token: {k}"]),
 ("trailer", ["trailer: authorization"]), ("connection names it", [f"authorization: Bearer {k}", "connection: authorization"]),
]
for n, lines in cases: print(f"{n:30} {ask(*lines)}")
for q in (f"?key={k}", f"?api_key={k}", f"?access_token={k}", f"?authorization=Bearer%20{k}"): print(f"query {q[:14]:24} {ask(path='/v1/sandboxes' + q)}")
print("method override:", ask(f"authorization: Bearer {read}", "x-http-method-override: DELETE", path="/v1/sandboxes/none"), "| HEAD:", ask(f"authorization: Bearer {read}", method="HEAD"), "| path //v1:", ask(f"authorization: Bearer {read}", path="//v1/keys"), "| /v1/keys/:", ask(f"authorization: Bearer {read}", path="/v1/keys/"), "| /V1/KEYS", ask(f"authorization: Bearer {read}", path="/V1/KEYS"), "| /v1/%6beys", ask(f"authorization: Bearer {read}", path="/v1/%6beys"), "| absolute form", ask(f"authorization: Bearer {read}", path=f"http://{HOST}/v1/keys"), "| HEAD keys", ask(f"authorization: Bearer {read}", method="HEAD", path="/v1/keys"))
revoke(rid); revoke(wid)
