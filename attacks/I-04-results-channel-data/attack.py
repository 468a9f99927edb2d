# Finds the channel of its own run and says what it is told to say on it.
import socket, time

channel = None
for entry in os.listdir("/proc/self/fd"):
    try:
        if os.readlink("/proc/self/fd/" + entry).startswith("socket:"):
            channel = socket.socket(fileno=os.dup(int(entry)))
    except (FileNotFoundError, OSError):
        pass
kind = sys.argv[1]
value = b'{"result":{"kind":"value","data":{"text/plain":"forged"},"metadata":{}}}\0'
channel.settimeout(20)
try:
    if kind == "honest":
        channel.sendall(value)
    elif kind == "endless":
        for _ in range(400):
            channel.sendall(b"x" * 65536)
    elif kind == "garbage":
        channel.sendall(b"\xff\0{}\0[1,2\0" + b'{"result":5}\0{"result":{"kind":"nothing"}}\0' + b'{"result":"\\ud800"}\0' + value)
    elif kind == "deep":
        channel.sendall(b'{"result":' + b"[" * 1000000 + b"]" * 1000000 + b"}\0")
    elif kind == "wide":
        channel.sendall(b'{"result":{"kind":"value","data":{"a/b":[' + b"[]," * 2600000 + b'[]]},"metadata":{}}}\0')
    elif kind == "ended":
        for record in (b'{"ended":{"pid":1,"status":0}}\0', b'{"done":{"code":0}}\0', b'{"ready":{}}\0', b'{"begun":{}}\0', b'{"refused":{"errno":1,"message":"x"}}\0'):
            channel.sendall(record)
    elif kind == "again":
        # Its time would begin anew with each.
        while True:
            channel.sendall(b'{"begun":{}}\0')
            time.sleep(0.05)
    elif kind == "empty":
        # Tens of thousands of records in each read.
        while True:
            channel.sendall(b"\0" * 65536)
    elif kind == "many":
        big = b'{"result":{"kind":"value","data":{"text/plain":"' + b"y" * 1000000 + b'"},"metadata":{}}}\0'
        for _ in range(100):
            channel.sendall(big)
            channel.recv(65536)
except OSError as error:
    print("stopped", name(error.errno or 0))
time.sleep(0.3)
print("said", kind)
os._exit(7)
