# "Shocker": files opened by the numbers of their inodes. The argument is a directory in which a file can be made.
import struct

NAME_TO, OPEN_BY = (303, 304) if os.uname().machine == "x86_64" else (264, 265)
place = sys.argv[1]
path = place + "/own"
os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
mount = os.open(place, os.O_RDONLY)
# A handle: the size of what follows, its type, and for type 1 the inode and its generation.
own = ctypes.create_string_buffer(struct.pack("Ii", 128, 0) + bytes(128), 136)


def name_own():
    syscall(NAME_TO, -100, ctypes.c_char_p(path.encode()), ctypes.byref(own), ctypes.byref(ctypes.c_int()), 0)


def open_own():
    try:
        name_own()
    except OSError:
        own[:] = (struct.pack("IiII", 8, 1, os.stat(path).st_ino, 0) + bytes(128))[:136]
    os.close(syscall(OPEN_BY, mount, ctypes.byref(own), os.O_RDONLY))


def open_first():
    """The first inodes of a file system, of which one is its root."""
    answer = OSError(errno.ENOENT, "")
    for inode in range(1, 300):
        guessed = ctypes.create_string_buffer(struct.pack("IiII", 8, 1, inode, 0), 16)
        try:
            return os.close(syscall(OPEN_BY, mount, ctypes.byref(guessed), os.O_RDONLY))
        except OSError as error:
            answer = error
            if error.errno not in (errno.ESTALE, errno.EINVAL):
                break
    raise answer


in_child("name_to_handle_at", name_own)
in_child("own file by handle", open_own)
in_child("first inodes by handle", open_first)
os.unlink(path)
done()
