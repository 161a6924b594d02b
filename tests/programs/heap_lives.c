// Allocates where it is easily missed: before main, in signal handlers, in threads that come and go, in a child. Prints
// nothing; each kind has a function of its own, and never frees, but brief() frees at once.
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define ALONE __attribute__((noinline, noclone))
#define THREADS 40

static void *volatile kept[10000];
static int count;

static void keep(void *block) {
    int at = __atomic_fetch_add(&count, 1, __ATOMIC_RELAXED);
    kept[at] = block;
}

ALONE void before_main(void) {
    for (int i = 0; i < 11; i++)
        keep(malloc(111));
}

__attribute__((constructor)) static void construct(void) {
    before_main();
}

ALONE void in_handler(void) {
    for (int i = 0; i < 3; i++)
        keep(malloc(333));
}

static void handler(int signal) {
    (void)signal;
    in_handler();
}

ALONE void brief(int times) {
    for (int i = 0; i < times; i++) {
        void *volatile block = malloc(77);
        free(block);
    }
}

ALONE void in_thread(void) {
    keep(malloc(777));
}

static void *run(void *unused) {
    in_thread();
    brief(50);
    return unused;
}

ALONE void in_child(void) {
    for (int i = 0; i < 20; i++)
        keep(malloc(2020));
}

ALONE void in_parent(void) {
    for (int i = 0; i < 13; i++)
        keep(malloc(1313));
}

int main(void) {
    pthread_t threads[4];
    signal(SIGUSR1, handler);
    raise(SIGUSR1);
    raise(SIGUSR1);
    for (int i = 0; i < THREADS; i += 4) {
        for (int j = 0; j < 4; j++)
            if (pthread_create(&threads[j], 0, run, 0))
                return 2;
        for (int j = 0; j < 4; j++)
            pthread_join(threads[j], 0);
    }
    pid_t child = fork();
    if (child == 0) {
        in_child();
        brief(30);
        _exit(0);
    }
    waitpid(child, 0, 0);
    in_parent();
    return 0;
}
