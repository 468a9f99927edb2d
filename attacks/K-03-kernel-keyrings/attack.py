# Keys that the kernel keeps, each call by itself.
ADD_KEY, REQUEST_KEY, KEYCTL = (248, 249, 250) if os.uname().machine == "x86_64" else (217, 218, 219)
THREAD, USER = -1, -4
GET_KEYRING_ID, JOIN_SESSION, DESCRIBE = 0, 1, 6
text = lambda word: ctypes.c_char_p(word)


def add():
    return syscall(ADD_KEY, text(b"user"), text(b"bellglass"), text(b"x"), 1, THREAD)


def request():
    try:
        add()
    except OSError:
        pass
    syscall(REQUEST_KEY, text(b"user"), text(b"bellglass"), ctypes.c_void_p(None), 0)


in_child("add_key", add)
in_child("request_key", request)
in_child("join session", lambda: syscall(KEYCTL, JOIN_SESSION, ctypes.c_void_p(None)))
in_child("keyring of the user", lambda: syscall(KEYCTL, GET_KEYRING_ID, USER, 1))
in_child("describe", lambda: syscall(KEYCTL, DESCRIBE, USER, ctypes.byref(ctypes.create_string_buffer(100)), 100))
done()
