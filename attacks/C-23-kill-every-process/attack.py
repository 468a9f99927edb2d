# SIGKILL, and SIGSTOP, to everybody this process may signal; and by number to the first hundred.
import signal, time

victim = os.fork()
if victim == 0:
    while True:
        signal.pause()
for number in range(2, 100):
    if number not in (os.getpid(), os.getppid(), victim):
        try:
            os.kill(number, signal.SIGKILL)
        except OSError:
            pass
for signal_number in (signal.SIGSTOP, signal.SIGKILL):
    try:
        os.kill(-1, signal_number)
    except OSError as error:
        print("everybody", name(error.errno))
_, status = os.waitpid(victim, 0)
print("victim", "dead" if os.WIFSIGNALED(status) else "alive")
if os.getpid() != 1:
    for signal_number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL):
        in_child("process 1 signal %d" % signal_number, lambda: os.kill(1, signal_number))
done()
