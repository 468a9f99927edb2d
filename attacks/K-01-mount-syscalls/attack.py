# The old mount API and the new one, each call by itself.
HERE = -100
text = lambda word: ctypes.c_char_p(word)
attributes = (ctypes.c_uint64 * 4)(1, 0, 0, 0)

in_child("mount", lambda: syscall(CALLS["mount"], text(b"none"), text(b"/tmp"), text(b"tmpfs"), 0, text(b"")))
in_child("bind", lambda: syscall(CALLS["mount"], text(b"/etc"), text(b"/tmp"), text(b""), 4096, text(b"")))
in_child("remount", lambda: syscall(CALLS["mount"], text(b""), text(b"/tmp"), text(b""), 32 | 4096, text(b"")))
in_child("chroot", lambda: syscall(CALLS["chroot"], text(b"/tmp")))
in_child("open_tree", lambda: syscall(428, HERE, text(b"/tmp"), 1))
in_child("move_mount", lambda: syscall(429, -1, text(b""), HERE, text(b"/tmp"), 4))
in_child("fsopen", lambda: syscall(430, text(b"tmpfs"), 0))
in_child("fsconfig", lambda: syscall(431, -1, 0, 0, 0, 0))
in_child("fsmount", lambda: syscall(432, -1, 0, 0))
in_child("fspick", lambda: syscall(433, HERE, text(b"/tmp"), 0))
in_child("mount_setattr", lambda: syscall(442, HERE, text(b"/tmp"), 0, ctypes.byref(attributes), 32))
in_child("umount2", lambda: syscall(CALLS["umount2"], text(b"/tmp"), 2))
in_child("pivot_root", lambda: syscall(CALLS["pivot_root"], text(b"/tmp"), text(b"/tmp")))
done()
