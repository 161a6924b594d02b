/* N calls, by turns mmap, mprotect and munmap, under 4^DEPTH different stacks, and at most KEEP mappings
 * that stay. Turns a loop WORK times for each, and prints a line every EVERY calls (a hundredth of N
 * where it is not given).
 * many_calls N DEPTH KEEP WORK EVERY */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define SIZE (4 * 4096)
#define LIVE 64

static long keep;
static void *live[LIVE];

static __attribute__((noinline)) void call(long i)
{
    void **slot = &live[i / 3 % LIVE];
    switch (i % 3) {
    case 0:
        if (*slot)
            break;
        *slot = mmap(NULL, SIZE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (*slot == MAP_FAILED)
            abort();
        break;
    case 1:
        if (mprotect((char *)*slot + 4096, SIZE / 2, PROT_READ | PROT_WRITE))
            abort();
        break;
    default:
        if (keep > 0) {
            keep--;
        } else if (munmap(*slot, SIZE)) {
            abort();
        }
        *slot = NULL;
    }
}

static void go(long i, unsigned path, int depth);

/* Work after the call, so that it becomes no jump. */
#define STEP(me)                                                              \
    static __attribute__((noinline)) void me(long i, unsigned path, int depth) \
    {                                                                         \
        volatile char local[40];                                              \
        local[0] = (char)i;                                                   \
        go(i, path, depth);                                                   \
        local[1] = local[0];                                                  \
    }
STEP(north) STEP(east) STEP(south) STEP(west)

static __attribute__((noinline)) void go(long i, unsigned path, int depth)
{
    static void (*const ways[])(long, unsigned, int) = {north, east, south, west};
    if (depth == 0)
        call(i);
    else
        ways[path & 3](i, path >> 2, depth - 1);
    __asm__ volatile("");
}

int main(int argc, char **argv)
{
    long n = argc > 1 ? atol(argv[1]) : 1000000;
    int depth = argc > 2 ? atoi(argv[2]) : 0;
    keep = argc > 3 ? atol(argv[3]) : 0;
    long work = argc > 4 ? atol(argv[4]) : 0;
    long every = argc > 5 ? atol(argv[5]) : n / 100;
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (long i = 0; i < n; i++) {
        for (volatile long turn = 0; turn < work; turn++)
            ;
        go(i, (unsigned)(i / 3) * 2654435761u >> 8, depth);
        /* Ends with whoever reads it. */
        if (every > 0 && i % every == 0 && printf("%ld\n", i) < 0)
            return 1;
    }
    return 0;
}
