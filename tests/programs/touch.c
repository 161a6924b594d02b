/* One function reserves, others touch known numbers of pages. `touch MODE [PAGES]`. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096UL
#define HUGE (2UL << 20)
#define FUNCTION __attribute__((noinline, noclone))

static void touch_pages(volatile char *at, size_t from, size_t to)
{
	for (size_t page = from; page < to; page++)
		at[page * PAGE] = 1;
}

FUNCTION char *reserve(size_t pages)
{
	char *at = mmap(0, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED)
		exit(3);
	madvise(at, pages * PAGE, MADV_NOHUGEPAGE);
	return at;
}

FUNCTION void touch_first(char *at, size_t from, size_t to)
{
	touch_pages(at, from, to);
	asm volatile("");
}

FUNCTION void touch_second(char *at, size_t from, size_t to)
{
	touch_pages(at, from, to);
	asm volatile("" ::: "memory");
}

FUNCTION void only_read(volatile char *at, size_t from, size_t to)
{
	for (size_t page = from; page < to; page++)
		(void)at[page * PAGE];
}

static char *shared_with_thread;

FUNCTION void *touch_in_thread(void *pages)
{
	touch_pages(shared_with_thread, 0, (size_t)pages);
	return 0;
}

FUNCTION void read_into(char *at, size_t pages)
{
	int fd = open("/dev/zero", O_RDONLY);

	if (read(fd, at, pages * PAGE) != (ssize_t)(pages * PAGE))
		exit(4);
	close(fd);
}

FUNCTION char *reserve_huge(size_t blocks)
{
	char *at = mmap(0, (blocks + 1) * HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	at = (char *)(((unsigned long)at + HUGE - 1) & ~(HUGE - 1));
	madvise(at, blocks * HUGE, MADV_HUGEPAGE);
	return at;
}

FUNCTION char *reserve_populated(size_t pages)
{
	return mmap(0, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
}

static long faults(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return usage.ru_minflt + usage.ru_majflt;
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "";
	size_t pages = argc > 2 ? strtoul(argv[2], 0, 10) : 1000;
	pthread_t thread;
	char *at;
	long before = faults();

	if (!strcmp(mode, "shares")) {
		at = reserve(pages);
		touch_first(at, 0, pages * 3 / 10);
		touch_second(at, pages / 2, pages * 7 / 10);
	} else if (!strcmp(mode, "mixed")) { /* page by page in turn */
		at = reserve(pages);
		for (size_t page = 0; page < pages; page++)
			(page % 4 ? touch_first : touch_second)(at, page, page + 1);
	} else if (!strcmp(mode, "thread")) {
		shared_with_thread = reserve(pages);
		pthread_create(&thread, 0, touch_in_thread, (void *)(pages / 2));
		pthread_join(thread, 0);
	} else if (!strcmp(mode, "read")) {
		read_into(reserve(pages), pages / 2);
	} else if (!strcmp(mode, "again")) {
		at = reserve(pages);
		touch_first(at, 0, pages);
		madvise(at, pages * PAGE, MADV_DONTNEED);
		touch_second(at, 0, pages / 4);
	} else if (!strcmp(mode, "readfirst")) { /* the zero page, then a page of its own */
		at = reserve(pages);
		only_read(at, 0, pages);
		touch_second(at, 0, pages / 2);
	} else if (!strcmp(mode, "huge")) {
		at = reserve_huge(4);
		touch_first(at, 0, 1);
		touch_second(at, 512, 513);
		touch_first(at, 1024, 1025);
		touch_second(at, 1536 + 100, 1536 + 101);
	} else if (!strcmp(mode, "populate")) {
		touch_first(reserve_populated(pages), 0, pages / 2);
	} else if (!strcmp(mode, "move")) {
		at = reserve(pages);
		touch_first(at, 0, pages / 2);
		at = mremap(at, pages * PAGE, 4 * pages * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, reserve(5 * pages));
		touch_second(at, 2 * pages, 3 * pages);
	} else if (!strcmp(mode, "fork")) {
		at = reserve(pages);
		touch_first(at, 0, pages / 2);
		if (!fork()) {
			touch_second(at, 0, pages / 4);
			return 0;
		}
		wait(0);
	} else if (!strcmp(mode, "attach")) { /* touches half, goes on when ordered, touches the rest */
		at = reserve(pages);
		touch_first(at, 0, pages / 2);
		puts("READY");
		fflush(stdout);
		getchar();
		touch_second(at, pages / 2, pages);
		touch_second(reserve(pages), 0, pages / 4);
		puts("DONE");
		fflush(stdout);
		getchar();
	} else if (!strcmp(mode, "guard")) { /* faults that make nothing resident */
		at = mmap(0, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (read(open("/dev/zero", O_RDONLY), at, 1) == 1)
			return 5;
		touch_first(reserve(pages), 0, pages);
	} else {
		return 2;
	}
	printf("%ld\n", faults() - before);
	return 0;
}
