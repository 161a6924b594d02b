/* Ranges of which it is known how much is resident, in pages of 4 KiB. Writes "ADDRESS LENGTH RESIDENT KIND"
 * for each to OUT.
 *   known OUT FILE [ADDRESS]    FILE is made; a mapping is requested at ADDRESS (above 47 bits: 5-level
 *                               page tables) */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096UL
#define PAGES 300UL

static FILE *out;

static char *map(void *at, size_t len, int prot, int flags, int fd)
{
    char *p = mmap(at, len, prot, flags, fd, 0);

    if (p == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    madvise(p, len, MADV_NOHUGEPAGE);
    return p;
}

static void touch(char *p, size_t pages, size_t step)
{
    for (size_t i = 0; i < pages; i++)
        p[i * step * PAGE] = 1;
}

static void say(const char *p, size_t pages, size_t resident, const char *kind)
{
    fprintf(out, "%#lx %lu %lu %s\n", (unsigned long)p, pages * PAGE, resident * PAGE, kind);
}

int main(int argc, char **argv)
{
    const int rw = PROT_READ | PROT_WRITE, private = MAP_PRIVATE | MAP_ANONYMOUS;
    char *p;

    if (argc < 3 || !(out = fopen(argv[1], "w")))
        return 2;
    setvbuf(out, NULL, _IONBF, 0);

    p = map(NULL, PAGES * PAGE, rw, private, -1);
    touch(p, 37, 8);
    say(p, PAGES, 37, "private");

    p = map(NULL, PAGES * PAGE, rw, private, -1);
    touch(p, PAGES, 1);
    madvise(p + 100 * PAGE, 50 * PAGE, MADV_DONTNEED);
    say(p, PAGES, PAGES - 50, "purged");

    p = map(NULL, PAGES * PAGE, rw, MAP_SHARED | MAP_ANONYMOUS, -1);
    touch(p, 41, 3);
    say(p, PAGES, 41, "shared");

    p = map(NULL, 51200 * PAGE, PROT_NONE, private | MAP_NORESERVE, -1);
    if (mprotect(p, 10 * PAGE, rw))
        return 1;
    touch(p, 10, 1);
    say(p, 10, 10, "opened");
    say(p + 10 * PAGE, 51190, 0, "reserved");

    int fd = open(argv[2], O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || ftruncate(fd, PAGES * PAGE))
        return 1;
    p = map(NULL, PAGES * PAGE, rw, MAP_PRIVATE, fd);
    touch(p, 13, 5);
    say(p, PAGES, 13, "copied");

    if (argc > 3) {
        void *hint = (void *)strtoul(argv[3], NULL, 0);
        p = map(hint, PAGES * PAGE, rw, private, -1);
        touch(p, 7, 11);
        say(p, PAGES, 7, p == hint ? "asked" : "elsewhere");
    }
    return 0;
}
