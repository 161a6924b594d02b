/* A thread executes a program while the first one is in vfork: whoever is first, the other's execve is on its
 * way. The new program does the same again.
 *
 *   exec_race GENERATIONS [GENERATION] */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static pthread_barrier_t both;
static char *const *arguments;
static char next[16];

static void *execute(void *argument)
{
    pthread_barrier_wait(&both);
    for (volatile int i = 0; i < atoi(next) % 40 * 500; i++)
        ;
    execl("/proc/self/exe", "exec_race", arguments[1], next, (char *)NULL);
    _exit(71);
    return argument;
}

int main(int argc, char **argv)
{
    int generation = argc > 2 ? atoi(argv[2]) : 0;
    pthread_t thread;
    if (argc < 2)
        return 64;
    if (generation == atoi(argv[1])) {
        /* The children of all generations are ours. */
        while (waitpid(-1, NULL, 0) > 0)
            ;
        return errno == ECHILD ? 0 : 65;
    }
    arguments = argv;
    snprintf(next, sizeof next, "%d", generation + 1);
    pthread_barrier_init(&both, NULL, 2);
    if (pthread_create(&thread, NULL, execute, NULL))
        return 66;
    pthread_barrier_wait(&both);
    pid_t child = vfork();
    if (child == 0) {
        execl("/bin/true", "true", (char *)NULL);
        _exit(72);
    }
    pthread_join(thread, NULL);
    return 67;
}
