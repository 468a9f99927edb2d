# io_uring: a second door to most system calls, behind which no filter looks.
parameters = (ctypes.c_uint32 * 30)()
in_child("io_uring_setup", lambda: syscall(425, 8, ctypes.byref(parameters)))
in_child("io_uring_enter", lambda: syscall(426, -1, 1, 0, 0, 0, 0))
in_child("io_uring_register", lambda: syscall(427, -1, 0, 0, 0))
done()
