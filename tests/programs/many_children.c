// Maps MAPPINGS pieces that the kernel keeps apart, then forks CHILDREN one after the other, which
// unmap one piece and end. An audit of it should cost what the largest process needs, not the sum.
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv) {
    long mappings = argc > 1 ? atol(argv[1]) : 5000;
    long children = argc > 2 ? atol(argv[2]) : 300;
    char *first = NULL;
    for (long i = 0; i < mappings; i++) {
        // Neighbours differ in their rights, so that they are not merged.
        int prot = i % 2 ? PROT_READ | PROT_WRITE : PROT_READ;
        char *at = mmap(NULL, 4096, prot, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (at == MAP_FAILED) {
            perror("mmap");
            return 1;
        }
        first = first ? first : at;
    }
    for (long i = 0; i < children; i++) {
        pid_t child = fork();
        if (child < 0) {
            perror("fork");
            return 1;
        }
        if (child == 0) {
            munmap(first, 4096);
            _exit(0);
        }
        if (waitpid(child, NULL, 0) != child) {
            return 1;
        }
    }
    return 0;
}
