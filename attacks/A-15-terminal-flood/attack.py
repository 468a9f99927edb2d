# Terminals: as many as can be had, and masters that are closed in the middle of a write.
import threading

THOUSAND = 1000


def hoard():
    """Opens terminals until there are no more, or a thousand."""
    held, answer = [], "ok"
    while len(held) < THOUSAND:
        try:
            held.append(os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY))
        except OSError as error:
            answer = name(error.errno)
            break
    print("opened", len(held))
    say("a thousand terminals", answer)


def tear():
    """Closes masters while somebody writes to their slaves, and slaves while somebody writes to their masters."""
    torn = 0
    for round in range(200):
        master, slave = os.openpty()
        keeps, goes = (slave, master) if round % 2 else (master, slave)
        os.set_blocking(keeps, False)

        def write():
            try:
                for _ in range(1000):
                    os.write(keeps, b"x" * 100)
            except OSError:
                pass

        writer = threading.Thread(target=write)
        writer.start()
        os.close(goes)
        writer.join()
        os.close(keeps)
        torn += 1
    print("torn", torn)


{"hoard": hoard, "tear": tear}[sys.argv[1]]()
done()
