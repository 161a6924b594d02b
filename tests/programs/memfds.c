/* Maps four files that are in no folder, one after the other closed again, and prints what maps says of each:
 * "START NAME". */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int main(void)
{
	char line[512], name[32];
	FILE *maps;
	int i, fd;

	for (i = 0; i < 4; i++) {
		snprintf(name, sizeof(name), "thing %d", i);
		fd = memfd_create(name, 0);
		if (fd < 0 || ftruncate(fd, 1 << 20) ||
		    mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED)
			return 1;
		if (i % 2)
			close(fd);
	}
	maps = fopen("/proc/self/maps", "r");
	while (maps && fgets(line, sizeof(line), maps)) {
		char *at = strstr(line, "/memfd:");

		if (!at)
			continue;
		at[strcspn(at, "\n")] = 0;
		line[strcspn(line, "-")] = 0;
		printf("0x%s %s\n", line, at);
	}
	return 0;
}
