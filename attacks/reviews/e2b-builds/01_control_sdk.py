"""Control: the published SDK builds a template with COPY, RUN, ENV, and a sandbox has what was copied."""
from common import *
os.environ.update(E2B_API_KEY=KEY, E2B_API_URL=URL, E2B_SANDBOX_URL=URL, NO_PROXY="127.0.0.1,localhost")
import tempfile; d = tempfile.mkdtemp(); os.makedirs(d + "/app"); open(d + "/app/a.txt", "w").write("copied")
from e2b import Sandbox, Template
t = Template(file_context_path=d).from_base_image().copy("app", "/home/user/app").set_envs({"MODE": "fast"}).run_cmd("echo built > /home/user/built")
Template.build(t, "control", on_build_logs=lambda x: print("log", x.level, x.message))
s = Sandbox.create("control", timeout=60); print(s.commands.run("cat app/a.txt built; echo $MODE; id -u").stdout); s.kill()
