// A target for the launch-and-hold tests: each mode ends, or lives, in a way of its own.
// Says what the test waits for on stdout, a line at a time; goes on at a byte on stdin.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void say(const char *word) { dprintf(1, "%s\n", word); }

static void await_word(void) {
    char byte;
    while (read(0, &byte, 1) < 0 && errno == EINTR) {}
}

// A state letter of a thread of this process, 0 when it is gone.
static char state_of(int tid) {
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", tid);
    int fd = open(path, O_RDONLY);
    if (fd < 0) return 0;
    ssize_t length = read(fd, text, sizeof text - 1);
    close(fd);
    if (length <= 0) return 0;
    text[length] = 0;
    char *end = strrchr(text, ')');
    return end ? end[2] : 0;
}

static void *nothing(void *arg) { return arg; }

// Raw exits: pthread_exit by the last thread would call exit_group.
static void *exit_after_main(void *arg) {
    char state;
    while ((state = state_of(getpid())) != 'Z') sched_yield();
    syscall(SYS_exit, (long)(intptr_t)arg);
    return NULL;
}

static pthread_barrier_t barrier;

static void *exit_at_once(void *arg) {
    pthread_barrier_wait(&barrier);
    syscall(SYS_exit, (long)(intptr_t)arg);
    return NULL;
}

static void *exit_group_at_once(void *arg) {
    pthread_barrier_wait(&barrier);
    _exit((int)(intptr_t)arg);
    return NULL;
}

static void *stay(void *arg) {
    for (;;) pause();
    return arg;
}

static void *return_after_main(void *arg) {
    while (state_of(getpid()) != 'Z') sched_yield();
    return arg;
}

static void *wait_after_main(void *arg) {
    while (state_of(getpid()) != 'Z') sched_yield();
    say("leader gone");
    await_word();
    syscall(SYS_exit, (long)(intptr_t)arg);
    return NULL;
}

static char *own_path;

// Becomes the process's leader although the leader has left already.
static void *exec_after_main(void *arg) {
    (void)arg;
    while (state_of(getpid()) != 'Z') sched_yield();
    execl(own_path, own_path, "waiting-main", "6", (char *)0);
    _exit(99);
}

static void *just_exit(void *arg) {
    syscall(SYS_exit, 0L);
    return arg;
}

static volatile sig_atomic_t alarms;
static void on_alarm(int signal) { (void)signal; alarms++; }

static void print_signal(int signal) { dprintf(1, "signal %d\n", signal); }

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

static int make_threads(int count) {
    for (int i = 0; i < count; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, nothing, NULL)) return 1;
        pthread_join(thread, NULL);
    }
    return 0;
}

static int own_listener(void) {
    struct sock_filter allow = {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW};
    struct sock_fprog program = {1, &allow};
    long fd = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
    return fd < 0 ? errno : 0;
}

int main(int argc, char **argv) {
    own_path = argv[0];
    const char *mode = argc > 1 ? argv[1] : "";
    int number = argc > 2 ? atoi(argv[2]) : 0;
    void *value = (void *)(intptr_t)number;
    pthread_t thread;

    if (!strcmp(mode, "exit")) return number;
    if (!strcmp(mode, "wait")) {
        dprintf(1, "ready %d\n", getpid());
        await_word();
        return number;
    }
    if (!strcmp(mode, "work")) {
        // After the word, threads end one after the other, and then all of it.
        dprintf(1, "ready %d\n", getpid());
        await_word();
        return make_threads(50) ? 1 : number;
    }
    if (!strcmp(mode, "steps")) {
        // A thread lives and ends in each step, for which a byte has to come; others stay to the end.
        for (int i = 0; i < 3; i++) pthread_create(&thread, NULL, stay, NULL);
        for (int i = 0; i < 40; i++) {
            await_word();
            if (make_threads(1)) return 1;
            dprintf(1, "step %d\n", i);
        }
        return number;
    }
    if (!strcmp(mode, "strict")) {
        int refused = argc > 3 ? (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_STRICT, 0, NULL)
                               : prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT, 0, 0, 0);
        // exit_group is not among what strict mode leaves.
        syscall(SYS_exit, refused ? (long)errno : (long)number);
    }
    if (!strcmp(mode, "wait-signals")) {
        for (int each = 1; each <= SIGTERM; each++) signal(each, print_signal);
        dprintf(1, "ready %d\n", getpid());
        await_word();
        return number;
    }
    if (!strcmp(mode, "suspend")) {
        // As an editor does that reads Ctrl-Z itself.
        raise(SIGTSTP);
        say("continued");
        return number;
    }
    if (!strcmp(mode, "close-all")) {
        syscall(SYS_close_range, 3, ~0U, 0);
        say("closed");
        await_word();
        return number;
    }
    if (!strcmp(mode, "abort")) abort();
    if (!strcmp(mode, "last-thread")) {
        pthread_create(&thread, NULL, exit_after_main, value);
        syscall(SYS_exit, 3L);
    }
    if (!strcmp(mode, "two-last")) {
        pthread_barrier_init(&barrier, NULL, 2);
        pthread_create(&thread, NULL, exit_at_once, value);
        exit_at_once(value);
    }
    if (!strcmp(mode, "many-last")) {
        pthread_barrier_init(&barrier, NULL, 17);
        for (int i = 0; i < 16; i++) pthread_create(&thread, NULL, exit_at_once, value);
        exit_at_once(value);
    }
    if (!strcmp(mode, "many-exit-group")) {
        pthread_barrier_init(&barrier, NULL, 9);
        for (int i = 0; i < 8; i++) pthread_create(&thread, NULL, exit_group_at_once, value);
        exit_group_at_once(value);
    }
    if (!strcmp(mode, "pthread-exit")) {
        pthread_create(&thread, NULL, return_after_main, NULL);
        pthread_exit(NULL);
    }
    if (!strcmp(mode, "leader-gone")) {
        pthread_create(&thread, NULL, wait_after_main, value);
        syscall(SYS_exit, 3L);
    }
    if (!strcmp(mode, "exec-thread")) {
        pthread_create(&thread, NULL, exec_after_main, NULL);
        syscall(SYS_exit, 3L);
    }
    if (!strcmp(mode, "waiting-main")) {
        // The main thread waits in another call while a thread exits.
        pthread_create(&thread, NULL, just_exit, NULL);
        pthread_join(thread, NULL);
        say("joined");
        await_word();
        return number;
    }
    if (!strcmp(mode, "vfork")) {
        pid_t child = vfork();
        if (child == 0) _exit(7);
        int status = 0;
        waitpid(child, &status, 0);
        dprintf(1, "vforked %d %d\n", child, WEXITSTATUS(status));
        return number;
    }
    if (!strcmp(mode, "daemon")) {
        if (fork() == 0) {
            setsid();
            if (fork() == 0) {
                syscall(SYS_close_range, 3, ~0U, 0);
                dprintf(1, "daemon %d\n", getpid());
                await_word();
                _exit(number);
            }
            _exit(0);
        }
        wait(NULL);
        return 0;
    }
    if (!strcmp(mode, "threads")) {
        make_threads(100);
        double begun = seconds();
        if (make_threads(number)) return 1;
        dprintf(1, "ns_per_thread %.0f\n", (seconds() - begun) / number * 1e9);
        return 0;
    }
    if (!strcmp(mode, "crowd")) {
        // As many threads as wished at the same time, which all leave at once.
        pthread_t *all = calloc(number, sizeof *all);
        pthread_attr_t small;
        pthread_attr_init(&small);
        pthread_attr_setstacksize(&small, 32768);
        pthread_barrier_init(&barrier, NULL, number + 1);
        for (int i = 0; i < number; i++)
            if (pthread_create(&all[i], &small, exit_at_once, NULL)) return 1;
        double begun = seconds();
        pthread_barrier_wait(&barrier);
        for (int i = 0; i < number; i++) pthread_join(all[i], NULL);
        dprintf(1, "ns_per_thread %.0f\n", (seconds() - begun) / number * 1e9);
        return 0;
    }
    if (!strcmp(mode, "storm")) {
        struct sigaction action = {.sa_handler = on_alarm, .sa_flags = argc > 3 ? 0 : SA_RESTART};
        sigaction(SIGALRM, &action, NULL);
        struct itimerval often = {{0, 100}, {0, 100}};
        setitimer(ITIMER_REAL, &often, NULL);
        while (alarms < 10) sched_yield();
        for (int i = 0; i < 200; i++) {
            while (pthread_create(&thread, NULL, nothing, NULL)) {}
            pthread_join(thread, NULL);
        }
        return number;
    }
    if (!strcmp(mode, "addresses")) {
        int local;
        dprintf(1, "addresses %p %p %p %p\n", (void *)&local, (void *)main, (void *)printf, malloc(1 << 20));
        return 0;
    }
    if (!strcmp(mode, "signals")) {
        sigset_t mask;
        struct sigaction action;
        sigprocmask(SIG_SETMASK, NULL, &mask);
        int blocked = 0;
        for (int each = 1; each < 32; each++) blocked += sigismember(&mask, each) == 1;
        sigaction(SIGPIPE, NULL, &action);
        dprintf(1, "blocked %d sigpipe %s nnp %d\n", blocked,
                action.sa_handler == SIG_DFL ? "default" : "other", prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0));
        return 0;
    }
    if (!strcmp(mode, "fds")) {
        char text[256] = "fds";
        for (int fd = 0; fd < 1024; fd++)
            if (fcntl(fd, F_GETFD) >= 0) snprintf(text + strlen(text), 8, " %d", fd);
        say(text);
        return 0;
    }
    if (!strcmp(mode, "listener")) {
        dprintf(1, "listener %d\n", own_listener());
        return 0;
    }
    return 98;
}
