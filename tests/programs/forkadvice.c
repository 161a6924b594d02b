/* Threads say again and again which of their pages a child is not to have, while another thread forks.
 * Whether a child has them depends on which of the two calls the kernel ran first. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096UL
#define THREADS 3
#define CHILDREN 60

static atomic_int over;

static void *adviser(void *arg)
{
    char *p = mmap(NULL, 64 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        _exit(70);
    for (unsigned long i = 0; !over; i++) {
        char *at = p + i * 7 % 60 * PAGE;
        madvise(at, 4 * PAGE, i / 60 % 2 ? MADV_DOFORK : MADV_DONTFORK);
    }
    return arg;
}

int main(void)
{
    pthread_t t[THREADS];
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&t[i], NULL, adviser, NULL))
            return 71;
    for (int i = 0; i < CHILDREN; i++) {
        pid_t pid = fork();
        if (pid == 0)
            _exit(0);
        if (pid < 0 || waitpid(pid, NULL, 0) != pid)
            return 72;
    }
    over = 1;
    for (int i = 0; i < THREADS; i++)
        pthread_join(t[i], NULL);
    return 0;
}
