# Makes inotify instances, each with a watch.
def take():
    instance = libc.inotify_init1(0)
    if instance < 0 or libc.inotify_add_watch(instance, b"/tmp", 2) < 0:
        raise OSError(ctypes.get_errno(), "")
    return instance


exhaust(take, 5000)
