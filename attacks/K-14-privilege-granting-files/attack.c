// Says what it gained by being run: `<how> ok` if it is root, of root's group, or has any capability.
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	unsigned long effective = 0, permitted = 0;
	char line[256];
	FILE *status = fopen("/proc/self/status", "r");

	while (status && fgets(line, sizeof line, status)) {
		sscanf(line, "CapEff: %lx", &effective);
		sscanf(line, "CapPrm: %lx", &permitted);
	}
	int gained = geteuid() == 0 || getegid() == 0 || effective || permitted;
	const char *slash = strrchr(argv[0], '/');
	printf("%s %s\n", slash ? slash + 1 : argv[0], gained ? "ok" : "nothing");
	return gained ? 42 : 0;
}
