/* 5 x 512 KiB on jemalloc: what the program requested, what jemalloc says, what the kernel says.
   Build: cc -g -O1 c2.c -ljemalloc
   Prints a line a step, then waits for a line on standard input (end of file ends it at once):
   step, asked, stats.allocated, active, resident, mapped, retained, RSS; all in bytes. */
#include <stdio.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int mallctl(const char *name, void *old, size_t *old_size, void *new, size_t new_size);

enum { BLOCKS = 5, SIZE = 512 << 10 };

static size_t stat_of(const char *name)
{
    size_t value = 0, size = sizeof value;
    if (mallctl(name, &value, &size, NULL, 0) != 0)
        return (size_t)-1;
    return value;
}

static size_t resident_pages(void)
{
    char text[128] = {0};
    long pages = 0;
    FILE *statm = fopen("/proc/self/statm", "r");
    if (statm != NULL) {
        if (fgets(text, sizeof text, statm) != NULL)
            sscanf(text, "%*s %ld", &pages);
        fclose(statm);
    }
    return (size_t)pages * 4096;
}

static void step(const char *name, size_t asked)
{
    uint64_t epoch = 1;
    size_t size = sizeof epoch;
    mallctl("epoch", &epoch, &size, &epoch, sizeof epoch);
    size_t rss = resident_pages();
    printf("%s asked=%zu allocated=%zu active=%zu resident=%zu mapped=%zu retained=%zu rss=%zu\n", name, asked,
           stat_of("stats.allocated"), stat_of("stats.active"), stat_of("stats.resident"),
           stat_of("stats.mapped"), stat_of("stats.retained"), rss);
    fflush(stdout);
    char line[16];
    if (fgets(line, sizeof line, stdin) == NULL)
        return;
}

__attribute__((noinline)) static char *ask(void)
{
    char *block = malloc(SIZE);
    if (block == NULL)
        exit(1);
    memset(block, 1, SIZE);
    return block;
}

int main(void)
{
    char *blocks[BLOCKS];
    step("start", 0);
    for (int i = 0; i < BLOCKS; i++)
        blocks[i] = ask();
    step("allocated", (size_t)BLOCKS * SIZE);
    for (int i = 0; i < 3; i++)
        free(blocks[i]);
    step("freed", (size_t)(BLOCKS - 3) * SIZE);
    mallctl("arena.4096.purge", NULL, NULL, NULL, 0); /* MALLCTL_ARENAS_ALL */
    step("purged", (size_t)(BLOCKS - 3) * SIZE);
    return 0;
}
