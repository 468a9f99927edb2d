# Stops every process it may signal, over and over, for some seconds: also those that are only just being born.
import signal, time

victim = os.fork()
if victim == 0:
    while True:
        signal.pause()
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    try:
        os.kill(-1, signal.SIGSTOP)
    except OSError:
        pass
_, status = os.waitpid(victim, os.WUNTRACED)
print("victim", "stopped" if os.WIFSTOPPED(status) else "running")
os.kill(victim, signal.SIGKILL)
