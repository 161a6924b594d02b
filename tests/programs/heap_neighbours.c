/* A thread whose stack is one mapping with what lies behind it, until that cannot be read any more; it allocates before and
 * after, from places that nobody has met. As a JVM's threads, whose guard pages come after their stacks. Prints the
 * bytes that it holds. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define STACK (256 << 10)

static char *area;
static pthread_barrier_t met;
static void *volatile kept[64];
static long held;

#define GRAB(n)                                                        \
	__attribute__((noinline)) static void grab##n(long size)       \
	{                                                              \
		volatile char local[16 * n];                           \
                                                                       \
		local[0] = (char)size;                                 \
		kept[n] = malloc(size);                                \
		held += size + (local[0] != (char)size);               \
	}
GRAB(1) GRAB(2) GRAB(3) GRAB(4)

static void *work(void *unused)
{
	grab1(1000);
	pthread_barrier_wait(&met);
	pthread_barrier_wait(&met);
	grab2(2000);
	grab3(3000);
	grab4(4000);
	return unused;
}

int main(void)
{
	pthread_attr_t how;
	pthread_t thread;

	area = mmap(0, 2 * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (area == MAP_FAILED || pthread_attr_init(&how) || pthread_attr_setstack(&how, area, STACK) ||
	    pthread_barrier_init(&met, 0, 2) || pthread_create(&thread, &how, work, 0))
		return 2;
	pthread_barrier_wait(&met);
	if (mprotect(area + STACK, STACK, PROT_NONE))
		return 2;
	pthread_barrier_wait(&met);
	pthread_join(thread, 0);
	printf("%ld\n", held);
	return 0;
}
