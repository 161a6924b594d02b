/* Maps 1 MiB, makes itself not dumpable as ssh-agent does, maps 2 MiB, and says when that is done; ends
 * with its input. */
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>

int main(void)
{
	mmap(0, 1 << 20, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	prctl(PR_SET_DUMPABLE, 0);
	mmap(0, 2 << 20, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	puts("READY");
	fflush(stdout);
	getchar();
	return 0;
}
