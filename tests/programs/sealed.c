/* What is sealed (mseal) refuses what others allow, and no result of a call shows it to who only watches maps: the
 * pages that were not to go to children go there all the same. Ends with 77 where the kernel has no mseal. */
#define _GNU_SOURCE
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096UL
#define MSEAL 462

int main(void)
{
    char *p = mmap(NULL, 8 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pid_t pid;
    if (p == MAP_FAILED)
        return 70;
    if (syscall(MSEAL, p, PAGE, 0))
        return 77;
    if (!madvise(p, 2 * PAGE, MADV_DONTFORK) || !munmap(p, 2 * PAGE) || !mprotect(p, 4 * PAGE, PROT_READ))
        return 71;
    pid = fork();
    if (pid == 0)
        _exit(0);
    return pid < 0 || waitpid(pid, NULL, 0) != pid ? 72 : 0;
}
