/*
 * Busy threads: each maps, unmaps, moves, protects and advises as fast as it can, through several call
 * paths; some of what they map is a file. The last thing that the program does is to write its own maps.
 *
 *   storm THREADS CALLS OUT [mixed|anon|file|madvise|mprotect [wait]]
 *
 * wait: after half of their calls the threads wait until standard input has a line or ends.
 * Says on standard error how long its threads took.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum kind { MIXED, ANON, FILES, MADVISE, MPROTECT };
static enum kind kind;
static int calls, halves, fds[8];
static pthread_barrier_t begin, half;
#define SLOTS 64
#define PAGE 4096UL

struct slot { char *at; size_t bytes; int file; };

static uint64_t next(uint64_t *state)
{
	uint64_t x = *state;
	x ^= x << 13; x ^= x >> 7; x ^= x << 17;
	return *state = x;
}

__attribute__((noinline)) static void *map_anon(size_t bytes, int prot)
{
	void *at = mmap(0, bytes, prot, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	__asm__ volatile("" : "+r"(at));
	return at;
}

__attribute__((noinline)) static void *map_file(size_t bytes, int which, int shared)
{
	void *at = mmap(0, bytes, PROT_READ, shared ? MAP_SHARED : MAP_PRIVATE, fds[which], 0);
	__asm__ volatile("" : "+r"(at));
	return at;
}

__attribute__((noinline)) static void unmap(void *at, size_t bytes)
{
	munmap(at, bytes);
	__asm__ volatile("");
}

__attribute__((noinline)) static void step(struct slot *slots, uint64_t *state);

/* Some calls come from deeper. */
__attribute__((noinline)) static void deeper(struct slot *slots, uint64_t *state, int depth)
{
	char local[200];
	memset(local, (int)*state, sizeof local);
	__asm__ volatile("" ::"r"(local) : "memory");
	if (depth)
		deeper(slots, state, depth - 1);
	else
		step(slots, state);
	__asm__ volatile("" ::"r"(local) : "memory");
}

static void step(struct slot *slots, uint64_t *state)
{
	uint64_t r = next(state);
	struct slot *slot = &slots[r % SLOTS];
	size_t pages = 1 + (r >> 8) % 16;
	int choice = (r >> 16) % 16;

	if (kind == MADVISE || kind == MPROTECT) {
		if (!slot->at)
			*slot = (struct slot){ map_anon(16 * PAGE, PROT_READ | PROT_WRITE), 16 * PAGE, 0 };
		else if (kind == MADVISE)
			madvise(slot->at + (r >> 20) % 8 * PAGE, (1 + (r >> 24) % 8) * PAGE, (r & 1 << 30) ? MADV_DONTNEED : MADV_NORMAL);
		else
			mprotect(slot->at + (r >> 20) % 8 * PAGE, (1 + (r >> 24) % 8) * PAGE, (r & 1 << 30) ? PROT_READ : PROT_READ | PROT_WRITE);
		return;
	}
	if (!slot->at) {
		int file = kind == FILES || (kind == MIXED && choice < 4);
		void *at = file ? map_file(pages * PAGE, kind == FILES ? 0 : choice, choice & 1)
				: map_anon(pages * PAGE, PROT_READ | PROT_WRITE);
		if (at != MAP_FAILED)
			*slot = (struct slot){ at, pages * PAGE, file };
	} else if (kind != MIXED || choice < 6) {
		unmap(slot->at, slot->bytes);
		slot->at = 0;
	} else if (choice < 9) {
		void *at = mremap(slot->at, slot->bytes, pages * PAGE, MREMAP_MAYMOVE);
		if (at != MAP_FAILED)
			*slot = (struct slot){ at, pages * PAGE, slot->file };
	} else if (choice < 12) {
		mprotect(slot->at, slot->bytes / 2 / PAGE * PAGE + PAGE, PROT_READ);
	} else if (choice < 14) {
		madvise(slot->at, slot->bytes, (r & 1 << 30) ? MADV_RANDOM : MADV_NORMAL);
	} else if (slot->bytes > PAGE) {
		munmap(slot->at, PAGE);
		slot->at += PAGE;
		slot->bytes -= PAGE;
	}
}

static void *thread(void *arg)
{
	struct slot slots[SLOTS] = {};
	uint64_t state = 88172645463325252ULL + 7919 * (uintptr_t)arg;

	pthread_barrier_wait(&begin);
	for (int i = 0; i < calls; i++) {
		if (halves && i == calls / 2) {
			pthread_barrier_wait(&half);
			pthread_barrier_wait(&half);
		}
		deeper(slots, &state, next(&state) % 6);
	}
	return 0;
}

int main(int argc, char **argv)
{
	static const char *const kinds[] = { "mixed", "anon", "file", "madvise", "mprotect" };
	int threads = argc > 3 ? atoi(argv[1]) : 0;
	pthread_t ids[256];
	struct timespec from, to;

	if (threads < 1 || threads > 256) {
		fprintf(stderr, "usage: storm THREADS CALLS OUT [mixed|anon|file|madvise|mprotect [wait]]\n");
		return 64;
	}
	calls = atoi(argv[2]);
	for (int i = 0; argc > 4 && i < 5; i++)
		if (!strcmp(argv[4], kinds[i]))
			kind = i;
	halves = argc > 5;
	for (int i = 0; i < 8; i++) {
		char name[64];
		snprintf(name, sizeof name, "/tmp/storm-%d-%d", getpid(), i);
		fds[i] = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
		if (ftruncate(fds[i], 1 << 20))
			return 2;
		unlink(name);
	}
	pthread_barrier_init(&begin, 0, threads + 1);
	pthread_barrier_init(&half, 0, threads + 1);
	for (long i = 0; i < threads; i++)
		pthread_create(&ids[i], 0, thread, (void *)(i + 1));
	pthread_barrier_wait(&begin);
	clock_gettime(CLOCK_MONOTONIC, &from);
	if (halves) {
		char byte;
		pthread_barrier_wait(&half);
		while (read(0, &byte, 1) == 1 && byte != '\n')
			;
		pthread_barrier_wait(&half);
	}
	for (int i = 0; i < threads; i++)
		pthread_join(ids[i], 0);
	clock_gettime(CLOCK_MONOTONIC, &to);
	fprintf(stderr, "storm: %.3f s\n", (to.tv_sec - from.tv_sec) + (to.tv_nsec - from.tv_nsec) / 1e9);
	{
		static char text[1 << 16];
		int in = open("/proc/self/maps", O_RDONLY), out = open(argv[3], O_WRONLY | O_CREAT | O_TRUNC, 0600);
		ssize_t n;
		while ((n = read(in, text, sizeof text)) > 0)
			if (write(out, text, n) != n)
				return 3;
	}
	_exit(0);
}
