// Arenas of jemalloc: 8 that the program makes itself ("made"), or those of 12 threads that allocate at the same time.
#include <jemalloc/jemalloc.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { THREADS = 12, MADE = 8 };

static pthread_barrier_t all_have_one;

static void *allocate(void *unused) {
    void *volatile block = malloc(100);
    pthread_barrier_wait(&all_have_one);
    free(block);
    return unused;
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "made")) {
        for (int i = 0; i < MADE; i++) {
            unsigned arena;
            size_t size = sizeof arena;
            if (mallctl("arenas.create", &arena, &size, NULL, 0)) return 1;
        }
    } else {
        pthread_t threads[THREADS];
        pthread_barrier_init(&all_have_one, NULL, THREADS);
        for (int i = 0; i < THREADS; i++)
            if (pthread_create(&threads[i], NULL, allocate, NULL)) return 1;
        for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    }
    // The last argument may be anything else: it waits then.
    if (argc > 2) pause();
    return 0;
}
