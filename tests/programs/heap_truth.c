/* Allocates in every way that libc has, and says what it holds: "PID bytes blocks", the child first.
 * With an argument it then obeys lines of its input: "a BYTES" allocates and keeps, "f" frees the newest
 * of these (its bytes stay in the sum), and answers each. */
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define HANDED 20000
#define SLOTS 1024

static void *kept[10000];
static int count;
static unsigned long bytes, blocks;
static void *queue[SLOTS];
static int first, last;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

__attribute__((noinline)) static void keep(void *block, unsigned long size)
{
	if (!block)
		abort();
	kept[count++] = block;
	bytes += size;
	blocks++;
}

/* What one thread allocates and another one frees. */
static void *allocate(void *unused)
{
	for (int i = 0; i < HANDED; i++) {
		void *block = malloc(100 + i % 1000);

		pthread_mutex_lock(&lock);
		while (last - first >= SLOTS - 1)
			pthread_cond_wait(&changed, &lock);
		queue[last++ % SLOTS] = block;
		pthread_cond_broadcast(&changed);
		pthread_mutex_unlock(&lock);
	}
	return unused;
}

static void *release(void *unused)
{
	for (int i = 0; i < HANDED; i++) {
		pthread_mutex_lock(&lock);
		while (first == last)
			pthread_cond_wait(&changed, &lock);
		void *block = queue[first++ % SLOTS];
		pthread_cond_broadcast(&changed);
		pthread_mutex_unlock(&lock);
		free(block);
	}
	return unused;
}

static void hand_over(void)
{
	pthread_t one, other;

	pthread_create(&one, 0, allocate, 0);
	pthread_create(&other, 0, release, 0);
	pthread_join(one, 0);
	pthread_join(other, 0);
}

static void print_truth(void)
{
	printf("%d %lu %lu\n", getpid(), bytes, blocks);
	fflush(stdout);
}

static void obey(void)
{
	char line[64];

	while (read(0, line, sizeof(line)) > 0) {
		if (line[0] == 'a') {
			unsigned long size = strtoul(line + 1, 0, 10);

			keep(malloc(size), size);
		} else {
			free(kept[--count]);
			blocks--;
		}
		print_truth();
	}
}

int main(int argc, char **argv)
{
	static char buffer[4096];
	volatile size_t too_much = (size_t)-1 / 2 - 100;
	void *block;
	pid_t child;

	(void)argv;
	setvbuf(stdout, buffer, _IOFBF, sizeof(buffer));
	for (int i = 1; i <= 1000; i++)
		keep(malloc(i), i);
	for (int i = 1; i <= 1000; i++)
		keep(calloc(i, 3), 3 * i);
	for (int i = 0; i < 100; i++)
		keep(realloc(malloc(10), 1000 + i), 1000 + i);
	for (int i = 0; i < 100; i++)
		keep(realloc(0, 77), 77);
	for (int i = 0; i < 100; i++)
		if (realloc(malloc(77), 0))
			abort();
	block = malloc(50);
	if (realloc(block, too_much) || malloc(too_much) || calloc(too_much, 8))
		abort();
	keep(block, 50);
	for (int i = 0; i < 100; i++) {
		if (posix_memalign(&block, 64, 300 + i))
			abort();
		keep(block, 300 + i);
		keep(memalign(128, 100), 100);
		keep(aligned_alloc(64, 640), 640);
		keep(valloc(5), 5);
		keep(pvalloc(6), 6);
		keep(strdup("twelve chars"), 13);
		keep(reallocarray(0, 7, 11), 77);
		keep(malloc(0), 0);
	}
	hand_over();
	for (int i = 0; i < 300; i++) {
		free(kept[i]);
		bytes -= i + 1;
		blocks--;
	}
	block = malloc(1 << 20);
	keep(block, 1 << 20);
	child = fork();
	if (!child) {
		free(block);
		bytes -= 1 << 20;
		blocks--;
		keep(malloc(12345), 12345);
		print_truth();
		_exit(0);
	}
	waitpid(child, 0, 0);
	print_truth();
	if (argc > 1)
		obey();
	return 0;
}
