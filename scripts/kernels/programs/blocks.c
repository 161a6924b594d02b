/* THREADS threads, each: ROUNDS times malloc, passed() and free; then KEEP blocks of 1,000 bytes by keeper()
 * that stay. So THREADS * ROUNDS calls of passed(), THREADS * KEEP blocks outstanding.
 *   blocks THREADS ROUNDS KEEP */
#include <pthread.h>
#include <stdlib.h>

#define THREADS 64
#define KEPT 4096

static int rounds, keep;
static void *kept[THREADS][KEPT];

__attribute__((noinline)) void passed(void *block)
{
    __asm__ volatile("" : : "r"(block) : "memory");
}

__attribute__((noinline)) void *keeper(void)
{
    void *block = malloc(1000);

    __asm__ volatile("" : : "r"(block) : "memory");
    return block;
}

static void *work(void *mine)
{
    void **slots = mine;

    for (int i = 0; i < rounds; i++) {
        char *block = malloc(64 + (size_t)i % 5000);
        if (!block)
            abort();
        block[0] = 1;
        passed(block);
        free(block);
    }
    for (int i = 0; i < keep; i++)
        slots[i] = keeper();
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS];
    int count = argc > 3 ? atoi(argv[1]) : 0;

    if (count < 1 || count > THREADS)
        return 2;
    rounds = atoi(argv[2]);
    keep = atoi(argv[3]) < KEPT ? atoi(argv[3]) : KEPT;
    for (int i = 0; i < count; i++)
        if (pthread_create(&threads[i], NULL, work, kept[i]))
            return 1;
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    return 0;
}
