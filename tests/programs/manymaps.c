/* N mappings of one page that cannot merge (their protections alternate), every touched one
 * written to once. Says READY, then waits for end of file on standard input.   manymaps N [nowait] */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    long n = argc > 1 ? atol(argv[1]) : 65000;
    char c;
    for (long i = 0; i < n; i++) {
        int prot = i & 1 ? PROT_READ : PROT_READ | PROT_WRITE;
        char *p = mmap(NULL, 4096, prot, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED) {
            perror("mmap");
            return 1;
        }
        if (prot & PROT_WRITE)
            *p = 1;
    }
    if (write(1, "READY\n", 6) != 6)
        return 1;
    while (!(argc > 2 && !strcmp(argv[2], "nowait")) && read(0, &c, 1) > 0)
        ;
    return 0;
}
