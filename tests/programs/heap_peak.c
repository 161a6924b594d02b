/* Knows when it holds the most and by whom: "PID peak", then of each of three functions "bytes blocks temporary calls",
 * and what the allocator gave beyond what was requested of what is held at the end.
 * With an argument, so many threads hold 8 MiB each at once: "PID bytes" of each of two functions. */
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define FUNCTIONS 3
#define MOST 2000
#define EACH 1000
#define BLOCKS (8 << 20) / EACH

struct held {
	void *block;
	unsigned long size;
	int function;
};

static struct held held[MOST];
static int count;
static unsigned long outstanding[FUNCTIONS], blocks[FUNCTIONS], temporary[FUNCTIONS], calls[FUNCTIONS];
static unsigned long peak, peak_bytes[FUNCTIONS], peak_blocks[FUNCTIONS];
static void *newest;

#define ALLOCATES(name)                                                       \
	__attribute__((noinline, noclone)) static void *name(unsigned long size) \
	{                                                                     \
		void *block = malloc(size);                                   \
		if (!block)                                                   \
			abort();                                              \
		*(volatile char *)block = 1;                                  \
		return block;                                                 \
	}

ALLOCATES(first)
ALLOCATES(second)
ALLOCATES(third)

static void *(*const functions[])(unsigned long) = { first, second, third };

static unsigned long total(void)
{
	return outstanding[0] + outstanding[1] + outstanding[2];
}

static void take(int function, unsigned long size)
{
	struct held *to = &held[count++];

	to->block = newest = functions[function](size);
	to->size = size;
	to->function = function;
	outstanding[function] += size;
	blocks[function]++;
	calls[function]++;
	if (total() <= peak)
		return;
	peak = total();
	for (int i = 0; i < FUNCTIONS; i++) {
		peak_bytes[i] = outstanding[i];
		peak_blocks[i] = blocks[i];
	}
}

static void give_back(int which)
{
	struct held *from = &held[which];

	if (from->block == newest) {
		temporary[from->function]++;
		newest = NULL;
	}
	free(from->block);
	outstanding[from->function] -= from->size;
	blocks[from->function]--;
	*from = held[--count];
}

static pthread_barrier_t all;

static void *hold(void *which)
{
	void **own = calloc(BLOCKS, sizeof(void *));

	for (int i = 0; i < BLOCKS; i++)
		own[i] = functions[(long)which & 1](EACH);
	pthread_barrier_wait(&all);
	for (int i = 0; i < BLOCKS; i++)
		free(own[i]);
	free(own);
	return NULL;
}

int main(int argc, char **argv)
{
	unsigned seed = 12345;
	int threads = argc > 1 ? atoi(argv[1]) : 0;

	if (threads > 0 && threads <= 64) {
		pthread_t each[64];

		pthread_barrier_init(&all, NULL, threads);
		for (long i = 0; i < threads; i++)
			pthread_create(&each[i], NULL, hold, (void *)i);
		for (int i = 0; i < threads; i++)
			pthread_join(each[i], NULL);
		printf("%d %lu %lu\n", getpid(), (threads + 1) / 2 * (unsigned long)(BLOCKS) * EACH,
		       threads / 2 * (unsigned long)(BLOCKS) * EACH);
		return 0;
	}
	setvbuf(stdout, NULL, _IONBF, 0);
	for (int round = 0; round < 200000; round++) {
		/* More is held for a while, less then, and again. */
		int limit = 100 + (round / 20000 % 2 ? 0 : MOST - 200), is_full = count >= limit;

		seed = seed * 1103515245 + 12345;
		if (!is_full && (seed >> 16) % 3)
			take((seed >> 20) % FUNCTIONS, (seed >> 8) % 97 ? 1 + (seed >> 4) % 3000 : 100000 + (seed >> 4) % 200000);
		else if (count)
			give_back((seed >> 18) % 2 ? count - 1 : (int)((seed >> 20) % count));
	}
	while (count > 50)
		give_back(count - 1);
	unsigned long rounding = 0;

	for (int i = 0; i < count; i++)
		rounding += malloc_usable_size(held[i].block) - held[i].size;
	printf("%d %lu", getpid(), peak);
	for (int i = 0; i < FUNCTIONS; i++)
		printf(" %lu %lu %lu %lu", peak_bytes[i], peak_blocks[i], temporary[i], calls[i]);
	printf(" %lu\n", rounding);
	return 0;
}
