# The channel between guest and node: entered, listed, taken over. The argument is its directory.
import socket

place = sys.argv[1]
path = place + "/node.sock"


def connect():
    dialler = socket.socket(socket.AF_UNIX)
    dialler.connect(path)
    dialler.sendall(b"BELLGLASS0" + bytes(8))


def bind(where):
    socket.socket(socket.AF_UNIX).bind(where)


in_child("list", lambda: os.listdir(place))
in_child("dial", connect)
in_child("bind beside", lambda: bind(place + "/other.sock"))
in_child("link", lambda: os.symlink("/tmp", place + "/link"))
in_child("rename", lambda: os.rename(path, place + "/old.sock"))
in_child("unlink", lambda: os.unlink(path if os.path.exists(path) else place + "/old.sock"))
in_child("bind in its place", lambda: bind(path))
in_child("remove", lambda: os.rename(place, place + "-old"))
done()
