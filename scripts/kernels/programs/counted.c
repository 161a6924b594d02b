/* THREADS threads, ROUNDS times each: mmap, mprotect, munmap of 19 pages, a size that nothing else here has.
 *   counted THREADS ROUNDS */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

#define SIZE (19 * 4096)

static int rounds;

static void *work(void *unused)
{
    for (int i = 0; i < rounds; i++) {
        void *p = mmap(NULL, SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED || mprotect(p, SIZE, PROT_READ) || munmap(p, SIZE))
            abort();
    }
    return unused;
}

int main(int argc, char **argv)
{
    pthread_t threads[64];
    int count = argc > 2 ? atoi(argv[1]) : 0;

    if (count < 1 || count > 64)
        return 2;
    rounds = atoi(argv[2]);
    for (int i = 0; i < count; i++)
        if (pthread_create(&threads[i], NULL, work, NULL))
            return 1;
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    return 0;
}
