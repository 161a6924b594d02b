/* Maps 16 MiB, touches each page below eight frames, unmaps, N times: prints nanoseconds a fault. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#define PAGE 4096UL
#define PAGES 4096UL

__attribute__((noinline, noclone)) static void deep(volatile char *at, int depth)
{
	if (depth > 0) {
		deep(at, depth - 1);
		asm volatile("" ::: "memory");
		return;
	}
	for (size_t page = 0; page < PAGES; page++)
		at[page * PAGE] = 1;
	asm volatile("" ::: "memory");
}

int main(int argc, char **argv)
{
	long rounds = argc > 1 ? atol(argv[1]) : 20;
	struct timespec begun, ended;
	double ns = 0;

	for (long round = 0; round < rounds; round++) {
		char *at = mmap(0, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		if (at == MAP_FAILED)
			return 1;
		madvise(at, PAGES * PAGE, MADV_NOHUGEPAGE);
		clock_gettime(CLOCK_MONOTONIC, &begun);
		deep(at, 8);
		clock_gettime(CLOCK_MONOTONIC, &ended);
		ns += (ended.tv_sec - begun.tv_sec) * 1e9 + (ended.tv_nsec - begun.tv_nsec);
		munmap(at, PAGES * PAGE);
	}
	printf("%.1f\n", ns / (rounds * PAGES));
	return 0;
}
