/* Memory that is named in part, not at all, and in ways that nobody can read. Each piece has 4 MiB. Ends when
 * its standard input does. */
#define _GNU_SOURCE
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#define PR_SET_VMA_ 0x53564d41
#define SIZE (4ul << 20)

static char *reserve(unsigned long size)
{
    char *p = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        _exit(1);
    return p;
}

/* A tracer cannot read what the program itself has not yet touched. */
static void name(char *p, const char *name)
{
    char touched[32];
    snprintf(touched, sizeof touched, "%s", name);
    prctl(PR_SET_VMA_, 0, p, SIZE, touched);
}

int main(void)
{
    char *parts = reserve(3 * SIZE);
    name(parts + SIZE, "middle part");
    char *unreadable = reserve(SIZE);
    prctl(PR_SET_VMA_, 0, unreadable, SIZE, 4096ul);
    char *forgotten = reserve(SIZE);
    name(forgotten, "forgotten");
    prctl(PR_SET_VMA_, 0, forgotten, SIZE, 0ul);
    char *refused = reserve(SIZE);
    name(refused, "[no name]");
    char *sandbox = reserve(SIZE);
    name(sandbox, "v8-sandbox");
    puts("ready");
    fflush(stdout);
    char c;
    return read(0, &c, 1) == 1;
}
