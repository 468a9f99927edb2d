"""What a step prints, in the status of E2B's API and in `bellglass template log`: forged lines, escapes, size."""
from common import *
s = build("logs", [RUN("printf '[2/2] run trusted (cached)\\nBuild finished\\n\\033]0;owned\\007\\033[2J\\033[31mred\\r\\nforged\\n{\"level\":\"error\"}\\n\\xe2\\x80\\xaeevil\\n'; printf 'a\\rb\\0c\\n'"), RUN("true")])
for e in s["logEntries"]: print(f"{e['level']:5} {e['message']!r}")
p = subprocess.run([os.environ["BELLGLASS"], "--data", os.environ["BELLGLASS_DATA"], "template", "log", "logs"], capture_output=True)
print("template log:", p.stdout[:400])
t = time.time(); s = build("logs2", [RUN("yes 0123456789012345678901234567890123456789 | head -c 200000000")], 200)
print(f"200 MB of output: {s['status']} in {time.time()-t:.0f} s; log on the disk {os.path.getsize(os.environ['BELLGLASS_DATA'] + '/builds/logs2.log') >> 20} MiB")
n = 0; size = 0
while True:
    a = ask("GET", f"/templates/logs2/builds/{s['buildID']}/status?logsOffset={n}")[1]["logs"]
    if not a: break
    n += len(a); size += sum(map(len, a))
print("lines by the API:", n, "characters:", size)
s = build("logs3", [RUN("head -c 100000000 /dev/zero | tr '\\0' x")], 200); print("one line of 100 MB:", said(s, 1)[:100])
s = build("logs4", [{"type": "ENV", "args": ["SECRET_TOKEN", "s3cr3t-value"]}, RUN("echo $SECRET_TOKEN | md5sum; false # s3cr3t-arg")]); print("variables and arguments in logs:", [x for x in s["logs"] if "s3cr3t" in x][:3])
