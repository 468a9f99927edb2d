# Programs whose files promise privileges: set-user-id, set-group-id, file capabilities; and one made here.
import shutil, subprocess

place = sys.argv[1]


def run(path):
    try:
        answer = subprocess.run([path], capture_output=True, text=True).stdout.split()
        say(answer[0], answer[1])
    except (OSError, IndexError) as error:
        say(os.path.basename(path), name(getattr(error, "errno", 0) or 0))


for program in ("set-user-id", "set-group-id", "capable"):
    run(os.path.join(place, program))
own = "/tmp/own"
shutil.copy(os.path.join(place, "set-user-id"), own)
os.chmod(own, 0o6755)
run(own)
in_child("chown to root", lambda: os.chown(own, 0, 0))
in_child("setuid", lambda: os.setuid(0))
in_child("setgid", lambda: os.setgid(0))
in_child("file capabilities", lambda: os.setxattr(own, "security.capability", bytes.fromhex("0100000200200000000000000000000000000000")))
done()
