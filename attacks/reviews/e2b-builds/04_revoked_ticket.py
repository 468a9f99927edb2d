"""A key of an administrator is revoked. A ticket that it took before still sends an archive, under a name of its choice; the next build of somebody else
finds `present: true`, sends nothing, and copies that archive. The other build is the published SDK's."""
from common import *
import re, tempfile
os.environ.update(E2B_API_KEY=KEY, E2B_API_URL=URL, E2B_SANDBOX_URL=URL, NO_PROXY="127.0.0.1,localhost")
from e2b import Sandbox, Template
def cli(*a): o = subprocess.run([os.environ["BELLGLASS"], *a], env={**os.environ, "BELLGLASS_SERVER": URL, "BELLGLASS_API_KEY": KEY}, capture_output=True, text=True); return o.stdout + o.stderr
cli("project", "set", "leaver"); made = cli("key", "create", "--project", "leaver", "--role", "admin"); key = re.search(r"[0-9a-f]{64}", made)[0]; kid = re.search(r"key (k[0-9a-f]+)", made)[1]
# What the other one will build, which the leaver knows: the same files, the same step.
d = tempfile.mkdtemp(); os.makedirs(d + "/app"); open(d + "/app/run.sh", "w").write("echo genuine " + str(time.time()) + "\n")
t = Template(file_context_path=d).from_base_image().copy("app", "/home/user/app")
archive = t._template._instructions_with_hashes()[0]["filesHash"] if hasattr(t._template, "_instructions_with_hashes") else None
print("archive's name, as the SDK makes it:", archive[:16] + "…")
ticket = ask("GET", f"/templates/x/files/{archive}", key=key)[1]; print("before: present", ticket["present"])
print("revoked:", cli("key", "revoke", kid).strip()[:80], "| the key now:", ask("GET", "/templates", key=key)[0])
print("archive sent with the ticket of the revoked key:", ask("PUT", ticket["url"], raw=tar([("app", "dir", 0), ("app/run.sh", "file", b"echo POISONED by a revoked key\n")]), key=None)[0])
Template.build(t, "genuine", on_build_logs=lambda x: print("  log", x.message))
s = Sandbox.create("genuine", timeout=60); print("sandbox of the other's template:", s.commands.run("cat app/run.sh").stdout.strip()); s.kill()
