/* Four threads that wait. Says "ready"; for each line of its input it maps 256 KiB by grow_here() and answers
 * "grown"; at the end of its input it copies its maps to OUT and leaves.
 *   steps OUT */
#define _GNU_SOURCE
#include "proc_copy.h"
#include <pthread.h>
#include <sys/mman.h>

static pthread_barrier_t ready;

__attribute__((noinline)) void grow_here(void)
{
    char *p = mmap(NULL, 256 << 10, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (p == MAP_FAILED)
        _exit(3);
    p[0] = 1;
}

static void *wait_for_ever(void *unused)
{
    void *volatile block = malloc(100000);

    pthread_barrier_wait(&ready);
    for (;;)
        pause();
    free(block);
    return unused;
}

static void answer(const char *text, size_t len)
{
    if (write(1, text, len) != (ssize_t)len)
        _exit(4);
}

int main(int argc, char **argv)
{
    pthread_t thread;
    char byte;

    if (argc < 2)
        return 2;
    pthread_barrier_init(&ready, NULL, 4);
    for (int i = 0; i < 3; i++)
        if (pthread_create(&thread, NULL, wait_for_ever, NULL))
            return 1;
    pthread_barrier_wait(&ready);
    answer("ready\n", 6);
    while (read(0, &byte, 1) == 1)
        if (byte == '\n') {
            grow_here();
            answer("grown\n", 6);
        }
    proc_copy("/proc/self/maps", argv[1]);
    _exit(0);
}
