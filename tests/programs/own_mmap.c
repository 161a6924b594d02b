/* 8 MiB by the program's own mmap; four threads with a block of 3 MiB each from malloc. Ends when its standard input
 * does. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static pthread_barrier_t up;

static void *work(void *kept)
{
    char *block = malloc(3 << 20);
    block[5] = *(char *)kept;
    pthread_barrier_wait(&up);
    pause();
    return block;
}

__attribute__((noinline)) static char *own(void)
{
    char *p = mmap(NULL, 8 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p != MAP_FAILED)
        p[3] = 1;
    return p;
}

int main(void)
{
    pthread_t thread;
    char c, *mine = own();
    pthread_barrier_init(&up, NULL, 5);
    for (int n = 0; n < 4; n++)
        if (pthread_create(&thread, NULL, work, mine))
            return 2;
    pthread_barrier_wait(&up);
    puts("ready");
    fflush(stdout);
    return read(0, &c, 1) == 1;
}
