# Without the proxy, whatever the environment says: there is no other way.
for variable in list(os.environ):
    if "proxy" in variable.lower():
        del os.environ[variable]
os.environ["NO_PROXY"] = os.environ["no_proxy"] = "*"
import urllib.request
for host in ("93.184.216.34", "93.184.216.35", "[2606:2800:220::34]", "good.example", "8.8.8.8"):
    attempt(f"{host}/direct", lambda: direct(host.strip("[]")))

    def fetched(host=host):
        try:
            reached(urllib.request.urlopen(f"http://{host}/", timeout=WITHIN).read())
        except urllib.error.URLError as error:
            refused(error)

    attempt(f"{host}/library", fetched)
for to in (("255.255.255.255", 9), ("224.0.0.251", 5353), ("93.184.216.255", 9), ("10.0.0.255", 9)):
    def send(to=to):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            one.sendto(b"anybody?", to)
    attempt(f"{to[0]}/datagram", send)
done()
