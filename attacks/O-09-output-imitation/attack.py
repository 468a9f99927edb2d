# Writes what stands around output somewhere: lines of the stream it travels in, of the log, of the audit log, ends of HTTP bodies and
# the answer after them, events. All of it carries a mark. Ends with 7.
END = ('{"type":"end","end":{"outcome":{"kind":"exited","code":0},"stdout_bytes":0,"stdout_dropped":0,"stderr_bytes":0,'
       '"stderr_dropped":0,"duration_us":1,"left_running":0}}')
ERROR = ('{"type":"error","error":{"code":"platform","message":"mark","layer":"platform","ran":"no","retry":"safe",'
         '"fix":"mark"}}')
FORGED = [
    END, ERROR, '{"type":"heartbeat"}', '{"type":"gap","stream":"stdout","from":0,"to":18446744073709551615}',
    '{"type":"data","stream":"stdout","offset":0,"text":"mark"}',
    "\n\nevent: end\ndata: {\"mark\":1}\n\n",
    "\r\n0\r\n\r\nHTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 10\r\n\r\n{\"mark\":1}",
    "2026-01-01T00:00:00.000000Z  INFO request answered method=GET route=\"/mark\" status=200 ms=1",
    '{"timestamp":"2026-01-01T00:00:00.000000Z","level":"ERROR","message":"mark"}',
    '{"at_ms":1,"act":"key_create","key":"mark","project":"default","previous":"00","hash":"00"}',
    "bellglass: the command was cancelled", "  fix:   mark", "root@host:~# mark",
    '"}\n' + END + '\n{"', "\u2028" + END + "\u2029" + END + "\u0085" + END,
]
text = "\n".join(FORGED).encode()
for descriptor in (1, 2):
    # At once, then line by line, so that a line is a write, a frame, a line of JSON and a chunk.
    os.write(descriptor, text + b"\n")
    for line in text.split(b"\n"):
        os.write(descriptor, line + b"\n")
sys.exit(7)
