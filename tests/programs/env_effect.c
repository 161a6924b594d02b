/* What it does is set by its environment and its arguments, so that the effect of a change is known:
 *   RESERVE=N   map N MiB and touch nothing of it        TOUCH=N   map N pages and touch each
 *   STATUS=N    exit with N                              CRASH=1   abort
 *   PIDFILE=F   append the pid to F                      SERVE=1   then wait for a signal
 * Each argument maps as many MiB more. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static long number(const char *name)
{
    const char *value = getenv(name);
    return value ? atol(value) : 0;
}

__attribute__((noinline)) static char *reserve(size_t bytes)
{
    char *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        exit(99);
    return p;
}

int main(int argc, char **argv)
{
    if (number("RESERVE"))
        reserve((size_t)number("RESERVE") << 20);
    for (int i = 1; i < argc; i++)
        reserve((size_t)atol(argv[i]) << 20);
    long pages = number("TOUCH");
    if (pages) {
        char *p = reserve((size_t)pages * 4096);
        madvise(p, (size_t)pages * 4096, MADV_NOHUGEPAGE);
        for (long i = 0; i < pages; i++)
            p[i * 4096] = 1;
    }
    if (getenv("PIDFILE")) {
        FILE *f = fopen(getenv("PIDFILE"), "a");
        if (!f)
            return 98;
        fprintf(f, "%d\n", getpid());
        fclose(f);
    }
    if (number("CRASH"))
        abort();
    if (number("SERVE"))
        for (;;)
            pause();
    return (int)number("STATUS");
}
