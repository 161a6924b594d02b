/* Maps, unmaps, protects and touches without end, in two threads, until it is killed.
 *   cc -O1 -pthread -o procfs_churn procfs_churn.c
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#define SLOTS 512

static void *churn(void *arg) {
    char *slots[SLOTS] = {0};
    size_t sizes[SLOTS] = {0};
    unsigned seed = (unsigned)(unsigned long)arg;
    for (unsigned long turn = 0;; turn++) {
        seed = seed * 1103515245 + 12345;
        unsigned at = seed >> 16 & (SLOTS - 1);
        if (slots[at]) munmap(slots[at], sizes[at]);
        sizes[at] = 4096 * (1 + (seed >> 8 & 15));
        slots[at] = mmap(NULL, sizes[at], PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (slots[at] == MAP_FAILED) _exit(1);
        slots[at][0] = 1;
        if (seed & 256) mprotect(slots[at], 4096, PROT_READ);
        if (turn == 4 * SLOTS && arg) {
            puts("ready");
            fflush(stdout);
        }
    }
    return NULL;
}

int main(void) {
    pthread_t thread;
    pthread_create(&thread, NULL, churn, NULL);
    churn((void *)1UL);
}
