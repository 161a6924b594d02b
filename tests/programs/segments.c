/* Threads that allocate and free small, large and huge blocks on mimalloc 2, free each other's, end, and wait.
   Build: cc -g -O1 segments.c -lmimalloc
   Orders, a line each: "visit" prints what mi_heap_visit_blocks counts in the heaps of the threads that live, and what the one
   that has ended had left; "collect" has each thread call mi_collect(true), and prints by how much Rss fell. */
#include <mimalloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "rss.h"

enum { SLOTS = 3000, THREADS = 8 };
static void *slots[THREADS][SLOTS];
static pthread_barrier_t filled, begin, end;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char order;
static size_t blocks, bytes, left_blocks, left_bytes;

static bool area(const mi_heap_t *heap, const mi_heap_area_t *area, void *block, size_t size, void *argument)
{
    (void)heap, (void)argument, (void)size;
    if (block != NULL) {
        blocks++;
        bytes += area->block_size;
    }
    return true;
}

static void obey(void)
{
    pthread_mutex_lock(&lock);
    if (order == 'v')
        mi_heap_visit_blocks(mi_heap_get_default(), true, area, NULL);
    else
        mi_collect(true);
    pthread_mutex_unlock(&lock);
}

static void fill(size_t number)
{
    unsigned seed = (unsigned)number + 1;
    void **own = slots[number];
    for (int i = 0; i < SLOTS * 8; i++) {
        int at = rand_r(&seed) % SLOTS;
        mi_free(own[at]);
        size_t size = rand_r(&seed) % 16 ? rand_r(&seed) % 2000 : rand_r(&seed) % 200000;
        own[at] = mi_malloc(size);
        memset(own[at], 1, size);
    }
    mi_free(own[0]);
    own[0] = mi_malloc(40 << 20); /* a segment of its own */
    memset(own[0], 1, 1 << 20);
    for (int i = 1; i < SLOTS; i++)
        if (rand_r(&seed) % 4 != 0) {
            mi_free(own[i]);
            own[i] = NULL;
        }
}

static void *ends(void *argument)
{
    fill((size_t)(uintptr_t)argument);
    for (int i = 0; i < SLOTS; i++)
        if (slots[(size_t)(uintptr_t)argument][i] != NULL) {
            left_blocks++;
            left_bytes += mi_usable_size(slots[(size_t)(uintptr_t)argument][i]);
        }
    return NULL;
}

static void *work(void *argument)
{
    fill((size_t)(uintptr_t)argument);
    pthread_barrier_wait(&filled);
    for (;;) {
        pthread_barrier_wait(&begin);
        obey();
        pthread_barrier_wait(&end);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    static char line[64], out[4096];
    setvbuf(stdout, out, _IOLBF, sizeof out);
    setvbuf(stdin, NULL, _IONBF, 0);
    int threads = argc > 1 ? atoi(argv[1]) : 3;
    pthread_t id;
    pthread_create(&id, NULL, ends, (void *)(uintptr_t)(THREADS - 1));
    pthread_join(id, NULL);
    pthread_barrier_init(&filled, NULL, (unsigned)threads + 1);
    pthread_barrier_init(&begin, NULL, (unsigned)threads + 1);
    pthread_barrier_init(&end, NULL, (unsigned)threads + 1);
    for (int i = 0; i < threads; i++)
        pthread_create(&id, NULL, work, (void *)(uintptr_t)i);
    pthread_barrier_wait(&filled);
    for (int i = 1; i < SLOTS; i += 5) { /* the threads have not taken them back */
        mi_free(slots[0][i]);
        slots[0][i] = NULL;
    }
    rss();
    printf("ready version=%d\n", mi_version());
    while (fgets(line, sizeof line, stdin) != NULL) {
        order = line[0];
        blocks = bytes = 0;
        size_t before = rss();
        pthread_barrier_wait(&begin);
        obey();
        pthread_barrier_wait(&end);
        size_t after = rss();
        if (order == 'v')
            printf("visited blocks=%zu bytes=%zu left_blocks=%zu left_bytes=%zu\n", blocks, bytes, left_blocks, left_bytes);
        else
            printf("collected fallen=%zu\n", before > after ? before - after : 0);
    }
    return 0;
}
