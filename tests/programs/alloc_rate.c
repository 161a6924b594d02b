/* A service that allocates RATE times a second, for CALLS allocations: each replaces an older block.
   Prints: allocations, bytes allocated, blocks and bytes still held, nanoseconds it took. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { SLOTS = 1024, BURST = 1000 };

static void *slots[SLOTS];
static size_t sizes[SLOTS];

static long long now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

__attribute__((noinline)) static void handle(unsigned long call, unsigned long *bytes)
{
	size_t size = 16 + call * 7919 % 1000;
	unsigned slot = call * 31 % SLOTS;

	free(slots[slot]);
	slots[slot] = malloc(size);
	sizes[slot] = size;
	*bytes += size;
}

int main(int argc, char **argv)
{
	unsigned long calls = argc > 1 ? strtoul(argv[1], NULL, 10) : 400000;
	long long rate = argc > 2 ? atoll(argv[2]) : 200000;
	static char output[256];
	unsigned long bytes = 0, held = 0, blocks = 0;
	long long begun = now();

	setvbuf(stdout, output, _IOFBF, sizeof(output));
	for (unsigned long call = 0; call < calls; call++) {
		if (call % BURST == 0) {
			long long due = begun + (long long)call * 1000000000LL / rate;
			struct timespec at = { due / 1000000000LL, due % 1000000000LL };

			clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
		}
		handle(call, &bytes);
	}
	for (int i = 0; i < SLOTS; i++) {
		blocks += slots[i] != NULL;
		held += sizes[i];
	}
	printf("%lu %lu %lu %lu %lld\n", calls, bytes, blocks, held, now() - begun);
	return 0;
}
