/* A program of several threads on whatever malloc it is linked with. Built with -DPREFIXED it calls
 * je_malloc, as a program does whose jemalloc has a prefix; then its threads open a stream as well, which
 * is the C library's own use of malloc.
 *
 * Says READY start, waits for a line (or the end) of standard input, allocates, says READY done, waits
 * again, and ends with everything still allocated and its threads alive: what a snapshot at READY done
 * shows is what there is at the end. */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef PREFIXED
void *je_malloc(size_t);
#define ALLOCATE je_malloc
#else
#define ALLOCATE malloc
#endif

enum { THREADS = 4, SMALL = 20000 };
static pthread_barrier_t up;

static void ready(const char *what)
{
    char c;
    ssize_t n = write(1, what, strlen(what));
    n += read(0, &c, 1);
    (void)n;
}

static void touch(size_t bytes)
{
    char *p = ALLOCATE(bytes);
    if (!p)
        _exit(3);
    memset(p, 1, bytes > 4096 ? 4096 : bytes);
}

static void *worker(void *x)
{
    for (int i = 0; i < 1000; i++)
        touch(1000);
#ifdef PREFIXED
    FILE *f = fopen("/dev/null", "r");
    if (!f)
        _exit(4);
#endif
    pthread_barrier_wait(&up);
    for (;;)
        pause();
    return x;
}

int main(void)
{
    pthread_t t;
    touch(100);
#ifdef WITH_FREE
    free(ALLOCATE(100)); /* a static musl program without it gets another malloc */
#endif
    ready("READY start\n");
    for (int i = 0; i < SMALL; i++)
        touch(1000);
    touch(1 << 20);
    touch(16 << 20);
    touch(200 << 20);
    pthread_barrier_init(&up, 0, THREADS + 1);
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&t, 0, worker, 0))
            return 2;
    pthread_barrier_wait(&up);
    ready("READY done\n");
    _exit(0);
}
