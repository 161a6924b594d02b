/* Threads that allocate and free small and large blocks on jemalloc, and wait.
   Build: cc -g -O1 extents.c -ljemalloc
   Orders, a line each: "stats" prints what jemalloc says of itself (after an epoch, without the blocks of stdio's buffers
   coming and going), "purge" purges all arenas and prints by how much Rss fell. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "rss.h"

int mallctl(const char *name, void *old, size_t *old_size, void *new, size_t new_size);

enum { SLOTS = 4000 };
static pthread_barrier_t done;

static size_t stat_of(const char *name)
{
    size_t value = 0, size = sizeof value;
    return mallctl(name, &value, &size, NULL, 0) == 0 ? value : (size_t)-1;
}

static size_t of_all_arenas(const char *what)
{
    char name[64];
    snprintf(name, sizeof name, "stats.arenas.4096.%s", what); /* MALLCTL_ARENAS_ALL */
    return stat_of(name);
}

static void *work(void *argument)
{
    unsigned seed = (unsigned)(uintptr_t)argument;
    void **slots = calloc(SLOTS, sizeof *slots);
    for (int i = 0; i < SLOTS * 8; i++) {
        int at = rand_r(&seed) % SLOTS;
        free(slots[at]);
        size_t size = rand_r(&seed) % 16 ? rand_r(&seed) % 2000 : rand_r(&seed) % 200000;
        slots[at] = malloc(size);
        if (slots[at] != NULL)
            memset(slots[at], 1, size);
    }
    for (int i = 0; i < SLOTS; i++)
        if (rand_r(&seed) % 4 != 0) {
            free(slots[i]);
            slots[i] = NULL;
        }
    pthread_barrier_wait(&done);
    /* The arena of a thread that has ended is purged. */
    pause();
    return slots;
}

int main(int argc, char **argv)
{
    static char line[64], out[4096];
    setvbuf(stdout, out, _IOLBF, sizeof out);
    setvbuf(stdin, NULL, _IONBF, 0);
    int threads = argc > 1 ? atoi(argv[1]) : 3;
    pthread_t id;
    pthread_barrier_init(&done, NULL, (unsigned)threads + 1);
    for (int i = 0; i < threads; i++)
        pthread_create(&id, NULL, work, (void *)(uintptr_t)(i + 1));
    pthread_barrier_wait(&done);
    rss();
    puts("ready");
    while (fgets(line, sizeof line, stdin) != NULL) {
        if (strncmp(line, "stats", 5) == 0) {
            uint64_t epoch = 1;
            size_t size = sizeof epoch;
            mallctl("epoch", &epoch, &size, &epoch, sizeof epoch);
            printf("stats allocated=%zu active=%zu retained=%zu pdirty=%zu pmuzzy=%zu resident=%zu metadata=%zu\n",
                   stat_of("stats.allocated"), stat_of("stats.active"), stat_of("stats.retained"),
                   of_all_arenas("pdirty"), of_all_arenas("pmuzzy"), stat_of("stats.resident"),
                   stat_of("stats.metadata"));
        } else {
            size_t before = rss();
            mallctl("arena.4096.purge", NULL, NULL, NULL, 0);
            size_t after = rss();
            printf("purged fallen=%zu\n", before > after ? before - after : 0);
        }
    }
    return 0;
}
