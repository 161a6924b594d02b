/* A process and a file that are named to be hard on terminals and parsers. Waits for a byte on
 * standard input each time, then: forks a child that maps 3 MiB, maps a file of 5 MiB in argv[1],
 * ends with 7.   oddly_named DIR */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static void step(void)
{
    char c;
    if (write(1, "READY\n", 6) != 6 || read(0, &c, 1) != 1)
        _exit(1);
}

int main(int argc, char **argv)
{
    static const char name[] = "late \n\xff\x1b[31m (deleted)";
    if (argc < 2 || chdir(argv[1]) || prctl(PR_SET_NAME, "a b\n\xff\x1b[31m", 0, 0, 0))
        return 2;
    step();
    pid_t child = fork();
    if (child == 0) {
        void *p = mmap(NULL, 3 << 20, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        _exit(p == MAP_FAILED);
    }
    waitpid(child, NULL, 0);
    int fd = open(name, O_RDWR | O_CREAT, 0600);
    if (fd < 0 || ftruncate(fd, 5 << 20))
        return 3;
    char *p = mmap(NULL, 5 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        return 4;
    *p = 1;
    step();
    return 7;
}
