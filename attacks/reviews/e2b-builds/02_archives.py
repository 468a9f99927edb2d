"""Hostile archives for COPY: each is uploaded and built; what a sandbox of the template then has is looked at."""
from common import *
import gzip
def go(label, raw, steps=None, look="true", name=None):
    a = name or name_of(raw); u = upload(a, raw)
    s = build("arch", (steps or [COPY(a, "d", "/home/user/d")])); out = run("arch", look) if s["status"] == "ready" else ""
    print(f"{label:34} upload {u[0]} build {said(s, 1)[:230]} {out}")
F = ("d/f", "file", b"ok")
go("control", tar([("d", "dir", 0), F]), look="cat /home/user/d/f")
go("climbs out", tar([("d", "dir", 0), F, ("d/../../../../etc/evil", "file", b"x")]), look="ls /etc/evil")
go("absolute name", tar([("d", "dir", 0), F, ("/etc/evil", "file", b"x")]), look="ls /etc/evil")
go("through a link that leads out", tar([("d", "dir", 0), ("d/l", "sym", "/etc"), ("d/l/evil", "file", b"x")]), look="ls -la /etc/evil")
go("hard link to a file of the system", tar([("d", "dir", 0), ("d/h", "hard", "/etc/shadow")]), look="ls -la /home/user/d")
go("hard link out, relative", tar([("d", "dir", 0), ("d/h", "hard", "../../../etc/shadow")]), look="ls -la /home/user/d")
go("symlink to host-looking path", tar([("d", "dir", 0), ("d/s", "sym", "/proc/1/root/etc/shadow")]), look="cat /home/user/d/s")
go("device node", tar([("d", "dir", 0), ("d/dev", "chr", (1, 1))]), look="ls -la /home/user/d")
go("FIFO", tar([("d", "dir", 0), ("d/p", "fifo", 0)]), look="ls -la /home/user/d")
go("whiteout names", tar([("d", "dir", 0), ("d/.wh.passwd", "file", b""), ("d/.wh..wh..opq", "file", b"")]), [COPY(name_of(tar([("d", "dir", 0), ("d/.wh.passwd", "file", b""), ("d/.wh..wh..opq", "file", b"")])), "d", "/etc")], look="ls -la /etc | head -5; wc -l /etc/passwd")
raw = tar([("d", "dir", 0), ("d/s", "file", b"#!/bin/sh\nid\n")]); raw2 = raw
go("mode 04755, root's", raw, [COPY(name_of(raw), "d", "/opt/d", "root", "4755")], look="ls -la /opt/d/s")
go("copied to / : dev, proc, tmp", tar([("d", "dir", 0), ("d/proc", "dir", 0), ("d/proc/x", "file", b"x"), ("d/tmp", "sym", "/etc"), ("d/workspace", "file", b"x")]), [COPY(name_of(tar([("d", "dir", 0), ("d/proc", "dir", 0), ("d/proc/x", "file", b"x"), ("d/tmp", "sym", "/etc"), ("d/workspace", "file", b"x")])), "d", "/")], look="ls -ld /tmp /workspace /proc")
go("name with a line end and escapes", tar([("d", "dir", 0), ("d/\x1b[31m\nforged", "file", b"x")]), look="ls /home/user/d | cat -v")
go("name of 4000 bytes, deep", tar([("d", "dir", 0), ("d/" + "a/" * 1500 + "f", "file", b"x")]), look="true")
go("not an archive", b"\x00" * 4096)
go("cut in the middle", raw2[:-30])
bomb = gzip.compress(b"\0" * (64 << 20)); 
go("gzip of 64 MiB zeros", bomb)
def many():
    out = io.BytesIO(); g = gzip.GzipFile(fileobj=out, mode="wb", compresslevel=9)
    i = tarfile.TarInfo("d/big"); i.size = 9 << 30; g.write(tarfile.TarInfo("d").tobuf()); g.write(i.tobuf())
    z = b"\0" * (1 << 24)
    for _ in range(int(os.environ.get("BOMB_MIB", "512")) // 16): g.write(z)
    g.close(); return out.getvalue()
m = many(); go(f"file said to be 9 GiB, {len(m)} bytes", m)
go("wrong hash as its name", tar([F]), [COPY("0" * 64, "d", "/home/user/d")], look="cat /home/user/d/f", name="0" * 64)
s = build("arch", [COPY("1" * 64, "d", "/x")]); print(f"{'never sent':34}", said(s, 1)[:200])
for bad in ("../../etc/passwd", "A" * 64, "0" * 63, "..%2f..%2fx", "a" * 64 + "%00"):
    print(f"archive named {bad[:20]:20}", ask("GET", f"/templates/x/files/{bad}")[0], "as a step:", said(build("arch", [COPY(bad, "d", "/x")]), 1)[:120])
