/* Forks a child that changes its root and its user before it allocates for the first time: 10 blocks of 1,000 bytes. Prints the
 * child's number.   heap_jailed FOLDER */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static __attribute__((noinline)) int keep(void)
{
    static void *volatile blocks[10];
    for (int i = 0; i < 10; i++)
        if (!(blocks[i] = malloc(1000)))
            return 1;
    return 0;
}

int main(int argc, char **argv)
{
    int status;
    pid_t child = argc == 2 ? fork() : -1;
    if (child == 0) {
        if (chroot(argv[1]) || chdir("/") || setgid(65534) || setuid(65534))
            _exit(2);
        _exit(keep());
    }
    if (child < 0 || waitpid(child, &status, 0) != child || status)
        return 1;
    printf("%d\n", child);
    return 0;
}
