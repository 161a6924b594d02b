/* A thread ends and is not joined, or is, with an argument: its stack stays mapped. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

static volatile int tid;

static void *work(void *unused)
{
    tid = (int)syscall(SYS_gettid);
    return unused;
}

int main(int count, char **names)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, work, NULL))
        return 2;
    while (!tid || !syscall(SYS_tgkill, getpid(), tid, 0) || errno != ESRCH)
        sched_yield();
    if (count > 1 && names)
        return pthread_join(thread, NULL);
    return 0;
}
