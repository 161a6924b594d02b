/* THREADS threads, ROUNDS times one after the other's end: each allocates COUNT blocks of 100 bytes and frees
 * every other one. Says what it holds: "bytes blocks".   heap_threads THREADS ROUNDS COUNT */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define SIZE 100

static long count;
static void *volatile sink;

__attribute__((noinline)) static void *grab(void)
{
	void *block = malloc(SIZE);

	sink = block;
	return block;
}

static void *work(void *unused)
{
	for (long i = 0; i < count; i++) {
		void *block = grab();

		if (i % 2)
			free(block);
	}
	return unused;
}

int main(int argc, char **argv)
{
	long threads = argc > 1 ? atol(argv[1]) : 2, rounds = argc > 2 ? atol(argv[2]) : 1, held;
	pthread_t *all = calloc(threads, sizeof(*all));

	count = argc > 3 ? atol(argv[3]) : 100;
	for (long round = 0; round < rounds; round++) {
		for (long i = 0; i < threads; i++)
			if (pthread_create(all + i, 0, work, 0))
				abort();
		for (long i = 0; i < threads; i++)
			pthread_join(all[i], 0);
	}
	held = threads * rounds * ((count + 1) / 2);
	printf("%ld %ld\n", held * SIZE, held);
	return 0;
}
