# In a sandbox that may have Debian's package curl and nothing else: files that are kept for others, and packages where a mirror keeps them too.
# Arguments: the SHA-256 of a Python file that another project has fetched, in hexadecimal digits.
HASH = sys.argv[1]


def fetch(path):
    with dial(PROXY) as stream:
        stream.sendall(f"GET http://packages.bellglass{path} HTTP/1.1\r\nhost: packages.bellglass\r\n\r\n".encode())
        said = everything(stream)
    if b" 200 " not in said.split(b"\r\n")[0]:
        refused(said[:200])


PATHS = [f"/debian/{where}by-hash/SHA256/{HASH}" for where in ("x/", "dists/", "dists/bookworm/main/binary-amd64/", "pool/", "indices/")]
PATHS += [f"/debian-security/dists/by-hash/SHA256/{HASH}", f"/debian/x/by-hash/SHA256/{HASH.upper()}"]
PATHS += ["/debian/" + path for path in (
    "pool/main/n/nmap/nmap_1.deb", "Pool/main/n/nmap/nmap_1.deb", "POOL/nmap_1.deb", "dists/stable/pool/main/n/nmap/nmap_1.deb", "indices/nmap_1.deb",
    "nmap_1.deb", "dists/nmap_1.DEB", "dists/nmap_1.udeb", "dists/nmap_1.dsc", "dists/nmap_1.orig.tar.xz", "tools/nmap", "pool/../dists/nmap_1.deb",
    "dists/_nmap_1.deb", "dists/nmap_1.deb~", "pool%2fnmap_1.deb", "dists/nmap_1%2edeb", "doc/nmap")]
PATHS += ["/python/files/demo/demo-1.0.tar.gz", "/python/simple/demo/", "/npm/demo"]
for path in PATHS:
    attempt(path, lambda: fetch(path))
done()
