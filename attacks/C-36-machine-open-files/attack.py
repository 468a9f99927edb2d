# Opens files until it is refused.
import resource

print("limit", resource.getrlimit(resource.RLIMIT_NOFILE)[1])
exhaust(lambda: os.open("/dev/null", os.O_RDONLY), 70000)
