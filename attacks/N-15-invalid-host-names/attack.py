# Hosts that are none, or two: each is to be refused before anything is matched.
BAD = ["evil.example\0.good.example", "evil.example%00.good.example", "evil.example\r\nx: .good.example", "evil.example\t.good.example",
       "evil.example\x7f.good.example", "a" * 260 + ".good.example", "a" * 64 + ".good.example", "a..good.example", ".good.example", "good.example..",
       "ex\xe4mple.good.example", "under_score.good.example", "-a.good.example", "[fe80::1%eth0]", "[::1%25lo]", "good.example,evil.example", "good.example;evil.example"]
for number, host in enumerate(BAD):
    attempt(f"{number}/request", lambda: get(f"http://{host}/"))
    attempt(f"{number}/tunnel", lambda: connect(f"{host}:80", "good.example"))
    if len(host) < 256:
        attempt(f"{number}/socks", lambda: socks(host))
done()
