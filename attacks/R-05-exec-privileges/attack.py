# CVE-2022-29162 and CVE-2022-27650: rights that an exec has and a start has not. Says every one it has.
with open("/proc/self/status") as status:
    fields = dict(line.rstrip("\n").split(":\t", 1) for line in status if ":\t" in line)
for each in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
    if each in fields:
        say(each, "ok" if int(fields[each], 16) else "none")
print("Uid", "+".join(fields["Uid"].split()))
print("Gid", "+".join(fields["Gid"].split()))
print("Groups", "+".join(fields.get("Groups", "").split()) or "none")
print("Seccomp", fields.get("Seccomp", "0"))
print("NoNewPrivs", libc.prctl(39, 0, 0, 0, 0))
done()
