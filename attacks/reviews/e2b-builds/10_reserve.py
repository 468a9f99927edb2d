"""The server runs with `disk_reserve_bytes` above what is free (1000000000000): new sandboxes are refused. Are archives and builds?"""
from common import *
print("sandbox:", str(ask("POST", "/sandboxes", {"templateID": "base"})[1])[:120])
print("archive of 32 MiB:", upload("f" * 64, os.urandom(32 << 20)))
s = build("reserve", [RUN("head -c 50000000 /dev/urandom > /home/user/b" + f" # {time.time()}")]); print("build of a layer of 50 MB:", said(s, 1)[:200])
print("left of the upload that a kill cut, after two starts:", [x[-4:] for x in os.listdir(os.environ["BELLGLASS_DATA"] + "/sent") if "#" in x])
