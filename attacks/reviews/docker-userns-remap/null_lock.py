# Takes a write lock on all of /dev/null and keeps it: on a shared inode, whoever else asks for one is refused or waits.
import fcntl, os, struct, sys, time
fd = os.open("/dev/null", os.O_RDWR)
fcntl.fcntl(fd, fcntl.F_SETLK, struct.pack("hhxxxxqqixxxx", fcntl.F_WRLCK, 0, 0, 0, 0))
print("locked", flush=True); time.sleep(float(sys.argv[1]))
