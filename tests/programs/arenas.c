// Blocks of many sizes in several arenas, some of them freed; it answers orders on its standard input from what
// glibc itself knows. Nothing is allocated between two orders.
//
//   arenas [THREADS [BLOCKS]]
//
//   info   malloc_info(3)'s XML, then a line "mallinfo ARENA UORDBLKS FORDBLKS FSMBLKS KEEPCOST HBLKS HBLKHD"
//   held   a line "held BLOCKS ASKED USABLE": what it holds of blocks without mappings of their own
//   trim   a line "trimmed BYTES": by how much RSS fell over malloc_trim(0)
#define _GNU_SOURCE
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int blocks = 40000;
static pthread_barrier_t done;
static size_t held, asked, usable;
static pthread_mutex_t sums = PTHREAD_MUTEX_INITIALIZER;
static char xml[1 << 20], out_buffer[1 << 16];

static uint32_t next(uint32_t *seed) {
	*seed = *seed * 1664525u + 1013904223u;
	return *seed >> 8;
}

static void *fill(void *arg) {
	uint32_t seed = 7 + (uint32_t)(uintptr_t)arg;
	size_t *sizes = calloc(blocks, sizeof *sizes);
	char **all = calloc(blocks, sizeof *all);
	for (int i = 0; i < blocks; i++) {
		uint32_t kind = next(&seed) % 16;
		sizes[i] = kind < 12 ? 1 + next(&seed) % 200 : kind < 15 ? 200 + next(&seed) % 3000 : 4000 + next(&seed) % 30000;
		all[i] = malloc(sizes[i]);
		memset(all[i], 1, sizes[i]);
	}
	// long runs, in which a block in a hundred stays, then every other
	for (int i = 0; i < blocks; i++) {
		int freed = i % 8000 < 5000 ? i % 100 != 0 : i % 2;
		if (freed) {
			free(all[i]);
			all[i] = NULL;
		}
	}
	size_t n = 2, bytes = (sizeof *sizes + sizeof *all) * blocks;
	size_t room = malloc_usable_size(sizes) + malloc_usable_size(all);
	if (bytes / 2 >= 128 << 10)
		n = bytes = room = 0;
	for (int i = 0; i < blocks; i++)
		if (all[i]) {
			n++;
			bytes += sizes[i];
			room += malloc_usable_size(all[i]);
		}
	pthread_mutex_lock(&sums);
	held += n, asked += bytes, usable += room;
	pthread_mutex_unlock(&sums);
	if (arg) {
		pthread_barrier_wait(&done);
		for (;;)
			pause();
	}
	return NULL;
}

// Exact, as statm is not.
static long rss(void) {
	char text[4096];
	int fd = open("/proc/self/smaps_rollup", O_RDONLY);
	ssize_t len = read(fd, text, sizeof text - 1);
	close(fd);
	text[len > 0 ? len : 0] = 0;
	char *at = strstr(text, "Rss:");
	return at ? atol(at + 4) * 1024 : -1;
}

int main(int argc, char **argv) {
	int threads = argc > 1 ? atoi(argv[1]) : 2;
	if (argc > 2)
		blocks = atoi(argv[2]);
	setvbuf(stdout, out_buffer, _IOFBF, sizeof out_buffer);
	FILE *to = fmemopen(xml, sizeof xml, "w");
	setvbuf(to, NULL, _IONBF, 0);
	pthread_barrier_init(&done, NULL, threads + 1);
	for (uintptr_t i = 1; i <= (uintptr_t)threads; i++) {
		pthread_t id;
		pthread_create(&id, NULL, fill, (void *)i);
	}
	fill(NULL);
	pthread_barrier_wait(&done);
	rss();
	printf("ready\n");
	fflush(stdout);
	char order[64];
	ssize_t len;
	while ((len = read(0, order, sizeof order - 1)) > 0) {
		order[len] = 0;
		if (!strncmp(order, "info", 4)) {
			rewind(to);
			malloc_info(0, to);
			fflush(to);
			struct mallinfo2 m = mallinfo2();
			printf("%s\nmallinfo %zu %zu %zu %zu %zu %zu %zu\n", xml, m.arena, m.uordblks, m.fordblks, m.fsmblks,
			       m.keepcost, m.hblks, m.hblkhd);
		} else if (!strncmp(order, "held", 4)) {
			printf("held %zu %zu %zu\n", held, asked, usable);
		} else if (!strncmp(order, "trim", 4)) {
			long before = rss();
			malloc_trim(0);
			printf("trimmed %ld\n", before - rss());
		}
		fflush(stdout);
	}
	return 0;
}
