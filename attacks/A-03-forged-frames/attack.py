# Words of the channel, written where a reader of them might be fooled: a false end with a false outcome, a gap, and more data
# than there is. The bytes come from the test; every descriptor and every socket of process 1 is tried as well.
import binascii, glob

forged = binascii.unhexlify(sys.argv[1])
os.write(1, forged)
os.write(2, forged)
for path in glob.glob("/proc/1/fd/*") + glob.glob("/proc/[0-9]*/fd/[3-9]"):
    try:
        with open(path, "wb", buffering=0) as stream:
            stream.write(forged)
    except OSError:
        pass
sys.exit(7)
