# Puts a line into the input of the terminal in which this program runs. The next program that reads from the terminal receives it.
import fcntl, sys

TIOCSTI, TIOCLINUX, PASTE = 0x5412, 0x541C, b"\x03"


def attempt(thing, act):
    try:
        act()
        print(thing, "ok", end="\r\n")
    except OSError as error:
        print(thing, error.errno, end="\r\n")


def type_line():
    for letter in b"injected\n":
        fcntl.ioctl(0, TIOCSTI, bytes([letter]))


attempt("type", type_line)
attempt("paste", lambda: fcntl.ioctl(0, TIOCLINUX, PASTE))
sys.stdout.flush()
