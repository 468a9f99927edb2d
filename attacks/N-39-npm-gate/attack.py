# In a sandbox that may have the npm packages demo, @scope/demo, liar, wanderer, weak and private, at least a day old: everything else that a registry has.
# Argument: the SHA-256 of a file of the package `secret`, which another project has fetched, in hexadecimal digits.
HASH = sys.argv[1]


def send(head, host="packages.bellglass"):
    with dial(PROXY) as stream:
        stream.sendall(f"{head} HTTP/1.1\r\nhost: {host}\r\ncontent-length: 0\r\n\r\n".encode("latin1"))
        said = everything(stream)
    if b" 200 " not in said.split(b"\r\n")[0] or not is_whole(said):
        refused(said[:300])
    return said


GATE = "http://packages.bellglass"
THINGS = {
    # Another package, by every way to write its name.
    "document": "GET {}/npm/secret", "tarball": "GET {}/npm/secret/-/secret-1.0.0.tgz", "head": "HEAD {}/npm/secret/-/secret-1.0.0.tgz",
    "scope": "GET {}/npm/@other/demo", "scope 2f": "GET {}/npm/@other%2fdemo", "scope 2F": "GET {}/npm/@other%2Fdemo/-/demo-1.0.0.tgz",
    "scope 40": "GET {}/npm/%40other/demo", "scope 252f": "GET {}/npm/@other%252fdemo", "no scope": "GET {}/npm/other/demo",
    "case": "GET {}/npm/Demo", "case tarball": "GET {}/npm/Demo/-/Demo-1.0.0.tgz", "upper": "GET {}/NPM/secret",
    "steps": "GET {}/npm/demo/../secret", "steps 2f": "GET {}/npm/demo%2f..%2fsecret", "steps 2e": "GET {}/npm/demo/%2e%2e/secret",
    "steps in scope": "GET {}/npm/@scope/..%2fsecret", "back": "GET {}/npm/demo%5c..%5csecret", "slashes": "GET {}/npm//secret", "outer slashes": "GET {}//npm/secret",
    "query": "GET {}/npm/secret?name=demo", "nul": "GET {}/npm/secret%00demo", "fragment": "GET {}/npm/demo%23/../secret",
    # A file of another package below the name of one that is allowed.
    "tarball below": "GET {}/npm/demo/-/secret-1.0.0.tgz", "tarball steps": "GET {}/npm/demo/-/..%2f..%2fsecret%2f-%2fsecret-1.0.0.tgz",
    "tarball twice": "GET {}/npm/demo/-/secret/-/secret-1.0.0.tgz", "tarball scope": "GET {}/npm/@scope/demo/-/@other/demo-1.0.0.tgz",
    # What a registry has besides.
    "search": "GET {}/npm/-/v1/search?text=secret", "all": "GET {}/npm/-/all", "tags": "GET {}/npm/-/package/secret/dist-tags", "whoami": "GET {}/npm/-/whoami",
    "version": "GET {}/npm/secret/1.0.0", "put": "PUT {}/npm/demo", "delete": "DELETE {}/npm/demo/-rev/1", "login": "PUT {}/npm/-/user/org.couchdb.user:x",
    # Too young, lying, weak, and leading elsewhere.
    "young": "GET {}/npm/demo/-/demo-2.0.0.tgz", "liar": "GET {}/npm/liar/-/liar-1.0.0.tgz", "weak": "GET {}/npm/weak/-/weak-1.0.0.tgz",
    "redirect": "GET {}/npm/wanderer/-/wanderer-1.0.0.tgz", "private": "GET {}/npm/private/-/private-1.0.0.tgz", "thief": "GET {}/npm/thief/-/thief-1.0.0.tgz",
    # What another project has fetched.
    "by hash": "GET {}/debian/dists/by-hash/SHA256/" + HASH, "by hash npm": "GET {}/npm/x/by-hash/SHA256/" + HASH, "as python": "GET {}/python/files/secret/secret-1.0.0.tgz",
}
for thing, head in THINGS.items():
    attempt(thing, lambda: send(head.format(GATE)))
attempt("other host", lambda: send("GET http://PACKAGES.bellglass./npm/secret"))
attempt("other port", lambda: send("GET http://packages.bellglass:8080/npm/secret"))
attempt("other header", lambda: send("GET http://packages.bellglass/npm/secret", host="demo"))
attempt("the mirror itself", lambda: send("GET http://93.184.216.35:8081/npm/secret", host="93.184.216.35:8081"))
# Tags of the document that lead to nothing that is let in.
said = send(f"GET {GATE}/npm/demo")
attempt("tags of the document", lambda: None if any(word in said for word in (b"../../secret", b"9.9.9", b"2.0.0", b"93.184.216.35")) else refused("none"))
done()
