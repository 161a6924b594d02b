/* COUNT live blocks of 16 to 1,039 bytes, replaced ROUNDS times from 1,024 call paths of ten frames; prints the
 * nanoseconds of CPU that a free and a malloc took, and the peak of RSS in KiB.   heap_churn COUNT ROUNDS */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static uint64_t state = 88172645463325252ull;
static void **live;

static uint64_t draw(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

__attribute__((noinline)) static void leaf(uint64_t bits, long at)
{
	free(live[at]);
	live[at] = malloc(16 + (bits >> 20 & 1023));
	*(volatile char *)live[at] = 1;
}

/* Frames of two sizes, so that paths differ in their addresses and in their depths. */
#define STEP(name, bytes, next_a, next_b)                                     \
	__attribute__((noinline)) static void name(uint64_t bits, long at)   \
	{                                                                    \
		volatile char local[bytes];                                   \
                                                                             \
		local[0] = 1;                                                \
		if (bits & 1)                                                \
			next_a(bits >> 1, at);                               \
		else                                                         \
			next_b(bits >> 1, at);                               \
		local[1] = local[0];                                         \
	}
#define BOTH(n, next_a, next_b) STEP(a##n, 24 + n, next_a, next_b) STEP(b##n, 40 + n, next_a, next_b)

BOTH(1, leaf, leaf)
BOTH(2, a1, b1)
BOTH(3, a2, b2)
BOTH(4, a3, b3)
BOTH(5, a4, b4)
BOTH(6, a5, b5)
BOTH(7, a6, b6)
BOTH(8, a7, b7)
BOTH(9, a8, b8)
STEP(top, 24, a9, b9)

/* VmHWM: getrusage has that of who started this, if that was more. */
static long peak(void)
{
	char line[256];
	long kib = 0;
	FILE *file = fopen("/proc/self/status", "r");

	while (file && fgets(line, sizeof(line), file))
		if (sscanf(line, "VmHWM: %ld", &kib) == 1)
			break;
	if (file)
		fclose(file);
	return kib;
}

int main(int argc, char **argv)
{
	long count = argc > 1 ? atol(argv[1]) : 20000, rounds = argc > 2 ? atol(argv[2]) : 1000000;
	struct timespec begun, ended;

	live = calloc(count, sizeof(*live));
	for (long i = 0; i < count; i++)
		top(draw() >> 8, i);
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &begun);
	for (long i = 0; i < rounds; i++) {
		uint64_t bits = draw();

		top(bits >> 8, (long)((bits >> 32) % count));
	}
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ended);
	printf("%.1f\n%ld\n",
	       ((ended.tv_sec - begun.tv_sec) * 1e9 + (ended.tv_nsec - begun.tv_nsec)) / rounds, peak());
	return 0;
}
