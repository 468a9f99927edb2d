# Processes until no more can be made; with `bomb`, each of which makes more, for as long as it is let.
import signal, subprocess, time

if sys.argv[1:] == ["bomb"]:
    print("bomb started", flush=True)
    os.execv("/bin/bash", ["bash", "-c", ":(){ :|:& };:; sleep 600"])
made, answer = [], "none"
try:
    while len(made) < 5000:
        pid = os.fork()
        if pid == 0:
            signal.pause()
        made.append(pid)
except OSError as error:
    answer = name(error.errno)
print("processes", len(made) + 1)
print("answer", answer)
for pid in made:
    os.kill(pid, signal.SIGKILL)
