/* Maps memory, in two threads and in the first one, under a local variable of several pages that was
 * never touched: the bytes between the stack pointer and the thread's start are not all there. */
#include <pthread.h>
#include <sys/mman.h>

__attribute__((noinline)) static void *leaf(int i)
{
    void *p = mmap(0, 4096 * (3 + i), PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    __asm__ volatile("" ::"r"(p) : "memory");
    return p;
}

__attribute__((noinline)) static void *under_a_hole(int i)
{
    char untouched[30000];
    __asm__ volatile("" ::"r"(untouched) : "memory");
    void *p = leaf(i);
    __asm__ volatile("" ::"r"(untouched), "r"(p) : "memory");
    return p;
}

static void *worker(void *arg)
{
    for (int i = 0; i < 4; i++)
        under_a_hole(i);
    return arg;
}

int main(void)
{
    pthread_t threads[2];

    for (int i = 0; i < 2; i++)
        if (pthread_create(&threads[i], 0, worker, 0))
            return 1;
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], 0);
    under_a_hole(9);
    return 0;
}
