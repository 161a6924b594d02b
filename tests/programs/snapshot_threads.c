/* Three threads that each have an arena of their own and then wait. Says "ready" and lives until its
 * standard input ends. With "leaderless", the first thread exits and the others go on. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pthread_barrier_t ready;

static void wait_for_end(void)
{
    char byte;
    while (read(0, &byte, 1) > 0)
        ;
    _exit(0);
}

static void *work(void *arg)
{
    char *volatile block = malloc(1000); /* volatile: not optimised away */
    memset(block, 1, 1000);
    pthread_barrier_wait(&ready);
    wait_for_end();
    free(block);
    return arg;
}

int main(int argc, char **argv)
{
    pthread_t thread;
    pthread_barrier_init(&ready, NULL, 4);
    for (int i = 0; i < 3; i++)
        if (pthread_create(&thread, NULL, work, NULL))
            return 1;
    pthread_barrier_wait(&ready);
    puts("ready");
    fflush(stdout);
    if (argc > 1 && !strcmp(argv[1], "leaderless"))
        pthread_exit(NULL);
    wait_for_end();
    return 0;
}
