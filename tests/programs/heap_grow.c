// heap_grow GROWING GONE BRIEF: 100 blocks of 1,000 bytes, GROWING of 5,000, GONE of 3,000, and BRIEF of 2,000 that are
// freed at once. Each kind by a function of its own.
#include <stdlib.h>

#define ALONE __attribute__((noinline, noclone))

static void *kept[100000];
static int count;

static void keep(void *block) {
    if (block)
        kept[count++] = block;
}

ALONE void steady(void) {
    for (int i = 0; i < 100; i++)
        keep(malloc(1000));
}

ALONE void growing(int times) {
    for (int i = 0; i < times; i++)
        keep(malloc(5000));
}

ALONE void gone(int times) {
    for (int i = 0; i < times; i++)
        keep(malloc(3000));
}

ALONE void brief(int times) {
    for (int i = 0; i < times; i++) {
        void *block = malloc(2000);
        __asm__ volatile("" : : "r"(block) : "memory");
        free(block);
    }
}

int main(int argc, char **argv) {
    if (argc < 4)
        return 2;
    steady();
    growing(atoi(argv[1]));
    gone(atoi(argv[2]));
    brief(atoi(argv[3]));
    return 0;
}
