/* A thread on memory that the program mapped itself: a guard page, a stack of 1 MiB and, in the same VMA above it,
 * 2 MiB that are no stack, with a page above that ends the VMA. What the thread first has of malloc is aligned. Ends when its standard input does. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define GUARD 4096
#define STACK (1 << 20)
#define REST (2 << 20)

static pthread_barrier_t up;

__attribute__((noinline)) static void *aligned(void)
{
    void *block = NULL;
    if (posix_memalign(&block, 64, 200))
        return NULL;
    *(char *)block = 1;
    return block;
}

static void *work(void *unused)
{
    void *block = aligned();
    pthread_barrier_wait(&up);
    pause();
    return unused ? unused : block;
}

int main(void)
{
    pthread_attr_t given;
    pthread_t thread;
    char c, *all = mmap(NULL, GUARD + STACK + REST + GUARD, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED || mprotect(all, GUARD, PROT_NONE) || mprotect(all + GUARD + STACK + REST, GUARD, PROT_NONE))
        return 2;
    for (int at = 0; at < REST; at += 4096)
        all[GUARD + STACK + at] = 1;
    pthread_barrier_init(&up, NULL, 2);
    pthread_attr_init(&given);
    if (pthread_attr_setstack(&given, all + GUARD, STACK) || pthread_create(&thread, &given, work, NULL))
        return 2;
    pthread_barrier_wait(&up);
    puts("ready");
    fflush(stdout);
    return read(0, &c, 1) == 1;
}
