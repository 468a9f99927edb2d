# Writes the bytes it is given in hexadecimal digits: at once to standard output, one by one to standard error.
wild = bytes.fromhex(sys.argv[1])
at = 0
while at < len(wild):
    at += os.write(1, wild[at:])
for byte in wild:
    os.write(2, bytes([byte]))
