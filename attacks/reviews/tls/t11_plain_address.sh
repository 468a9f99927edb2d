#!/bin/bash
# In a network namespace of its own: does the command line send its key in clear to an address that is not this machine's? BELLGLASS is the executable.
unshare -n bash -c '
ip link set lo up; ip addr add 192.0.2.7/32 dev lo
python3 - <<P &
import socket
r=socket.socket(); r.bind(("127.0.0.1",7071)); l=socket.socket(); l.bind(("192.0.2.7",7070)); l.listen(5); l.settimeout(12); r.listen(5)
try:
    c=l.accept()[0]; d=c.recv(4096); print("the server at 192.0.2.7 was told:", [x[:34] for x in d.decode().split("\r\n") if x.lower().startswith("authorization")]); c.close()
except TimeoutError: print("nothing came")
P
for i in 1 2 3 4 5 6 7 8; do sleep .5; (exec 3<>/dev/tcp/127.0.0.1/7071) 2>/dev/null && break; done; env -u http_proxy -u HTTP_PROXY BELLGLASS_API_KEY=bgk_$(printf 5e%.0s $(seq 32)) '"$BELLGLASS"' --server http://192.0.2.7:7070 --server-wait 1s list 2>&1 | head -2; wait'
