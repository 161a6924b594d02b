/* Thread stacks as glibc makes them from 2.42 on: mapped readable and writable at once, the guard a page
   that MADV_GUARD_INSTALL makes inaccessible inside of the mapping. Three neighbours, which the kernel
   merges into one VMA. With an argument: no guards at all. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#define COUNT 3
#define PAGE 4096ul
#define SIZE (1024 * 1024ul + PAGE)
#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#endif

static pthread_barrier_t up;
static int release[2];

static void *wait_there(void *none)
{
    char byte;
    pthread_barrier_wait(&up);
    return read(release[0], &byte, 1) < 0 ? 0 : none;
}

int main(int count, char **arguments)
{
    int guards = count < 2;
    (void)arguments;
    if (pipe(release) || pthread_barrier_init(&up, 0, COUNT + 1)) return 1;
    /* one range, given back and mapped again piece by piece: neighbours for sure */
    char *base = mmap(0, COUNT * SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) return 1;
    for (int i = 0; i < COUNT; i++) {
        char *stack = mmap(base + i * SIZE, SIZE, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK | MAP_FIXED, -1, 0);
        if (stack == MAP_FAILED) return 1;
        if (guards && madvise(stack, PAGE, MADV_GUARD_INSTALL)) {
            puts("refused");
            return 0;
        }
        pthread_attr_t with;
        pthread_t thread;
        pthread_attr_init(&with);
        pthread_attr_setstack(&with, guards ? stack + PAGE : stack, guards ? SIZE - PAGE : SIZE);
        if (pthread_create(&thread, &with, wait_there, 0)) return 1;
    }
    pthread_barrier_wait(&up);
    puts("ready");
    fflush(stdout);
    char byte;
    return read(0, &byte, 1) < 0;
}
