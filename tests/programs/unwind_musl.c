/* Against a libc without unwind tables. "malloc": main > outer > inner > malloc > … > mmap.
 * "qsort": main > outer > sorts > qsort > … > compare > mmap, tables and none in turns. */
#include "unwind_capture.h"
#include <sys/resource.h>

static volatile size_t sink;

__attribute__((noinline)) void inner(size_t n) {
	volatile char local[200];
	local[n] = 1;
	void *p = malloc(CAP_LEN + 64);
	sink += (size_t)p + (size_t)local[n];
}

static int once;

__attribute__((noinline)) int compare(const void *a, const void *b) {
	if (!once++) sink += (size_t)mmap(NULL, CAP_LEN, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	return *(const int *)a - *(const int *)b;
}

__attribute__((noinline)) void sorts(size_t n) {
	int numbers[] = {5, 3, 9, 1, (int)n, 7};
	qsort(numbers, 6, sizeof *numbers, compare);
	sink += (size_t)numbers[0];
}

__attribute__((noinline)) void outer(size_t n, const char *mode) {
	if (!strcmp(mode, "qsort")) sorts(n);
	else inner(n);
	sink++;
}

int main(int argc, char **argv) {
	/* brk fails, so that malloc has to call mmap. */
	struct rlimit limit = {64 << 20, 64 << 20};
	setrlimit(RLIMIT_DATA, &limit);
	cap_install();
	outer((size_t)argc, argc > 1 ? argv[1] : "malloc");
	return 0;
}
