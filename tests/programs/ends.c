/* The ways a program can come to its end, or go on.
 *   ends exit N | _exit N | kill SIG | closefds N | vfork | last-thread | thread-exit N | orphan FILE */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static pthread_t first;

static void touch_some(void)
{
    char *p = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p != MAP_FAILED)
        memset(p, 1, 65536);
}

/* Outlives the first thread; the process ends when this one does. */
static void *last_thread(void *x)
{
    pthread_join(first, NULL);
    touch_some();
    return x;
}

static void *leaver(void *n) { exit((int)(long)n); }

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    int n = argc > 2 ? atoi(argv[2]) : 0;
    pthread_t t;
    touch_some();
    if (!strcmp(what, "exit"))
        return n;
    if (!strcmp(what, "_exit"))
        _exit(n);
    if (!strcmp(what, "kill")) {
        raise(n);
        return 99;
    }
    if (!strcmp(what, "closefds")) { /* whatever a tracer may have left open in us */
        for (int fd = 3; fd < 4096; fd++)
            close(fd);
        touch_some();
        return n;
    }
    if (!strcmp(what, "vfork")) {
        int status = 0;
        pid_t pid = vfork();
        if (pid == 0) {
            execl("/bin/sh", "sh", "-c", "exit 7", (char *)NULL);
            _exit(70);
        }
        waitpid(pid, &status, 0);
        return WEXITSTATUS(status);
    }
    if (!strcmp(what, "last-thread")) {
        first = pthread_self();
        pthread_create(&t, NULL, last_thread, NULL);
        pthread_exit(NULL);
    }
    if (!strcmp(what, "thread-exit")) {
        pthread_create(&t, NULL, leaver, (void *)(long)n);
        pause();
    }
    if (!strcmp(what, "orphan")) {
        /* Says READY, waits for a byte, maps, writes "done" to FILE and leaves: to be used when
         * the tracer dies in between. */
        char c;
        FILE *f;
        if (write(1, "READY\n", 6) != 6 || read(0, &c, 1) < 0)
            return 68;
        touch_some();
        f = fopen(argv[2], "w");
        if (!f || fputs("done\n", f) < 0 || fclose(f))
            return 69;
        return 0;
    }
    return 64;
}
