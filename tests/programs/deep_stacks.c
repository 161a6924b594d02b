/*
 * Maps and unmaps memory CALLS / 2 times, each time under a stack that it never had before:
 *   deep_stacks CALLS DEPTH
 * A stack has 2 * DEPTH frames and those of main and of the C library; DEPTH is 10 or more.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

/* Two bits for each level, the same again after ten. */
static unsigned long path;

static void descend(int levels);

/* Nothing may become a jump: the call is not the last thing that happens. */
#define FUNCTION(name)                                         \
	static __attribute__((noinline)) void name(int levels) \
	{                                                      \
		descend(levels - 1);                           \
		__asm__ volatile("");                          \
	}
FUNCTION(north)
FUNCTION(east)
FUNCTION(south)
FUNCTION(west)

static __attribute__((noinline)) void descend(int levels)
{
	static void (*const ways[])(int) = { north, east, south, west };
	if (levels == 0) {
		void *memory = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (memory == MAP_FAILED || munmap(memory, 8192)) {
			perror("deep_stacks");
			exit(1);
		}
	} else {
		ways[path >> 2 * (levels % 10) & 3](levels);
	}
	__asm__ volatile("");
}

int main(int count, char **words)
{
	if (count != 3 || atoi(words[2]) < 10) {
		fprintf(stderr, "usage: deep_stacks CALLS DEPTH (10 or more)\n");
		return 2;
	}
	/* 2^20 paths, far from each other one after the other. */
	for (long i = 0; i < atol(words[1]) / 2; i++) {
		path = (unsigned long)i * 0x9e375 & 0xfffff;
		descend(atoi(words[2]));
	}
	return 0;
}
