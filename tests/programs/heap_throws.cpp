// operator new in its forms, and when it throws. Says "BYTES BLOCKS".
#include <cstdio>
#include <new>
#include <stdexcept>
#include <unistd.h>

struct alignas(64) Aligned {
    char x[640];
};

static void *volatile sink;
static unsigned long bytes, blocks;

template <class T> static void keep(T *block, unsigned long size) {
    sink = block;
    bytes += size;
    blocks++;
}

int main() {
    static char buffer[4096];
    setvbuf(stdout, buffer, _IOFBF, sizeof(buffer));
    int thrown = 0;
    for (int i = 0; i < 100; i++) {
        try {
            volatile size_t size = size_t(1) << 60;
            sink = new char[size];
        } catch (const std::bad_alloc &) {
            thrown++;
        }
    }
    for (int i = 0; i < 50; i++) {
        try {
            throw std::runtime_error("a message too long to be kept in place");
        } catch (const std::exception &) {
            thrown++;
        }
    }
    for (int i = 0; i < 10; i++) {
        keep(new int[262144], 262144 * sizeof(int));
        keep(new Aligned, sizeof(Aligned));
        keep(new (std::nothrow) char[100], 100);
        int *one = new int, *many = new int[7];
        Aligned *aligned = new Aligned;
        sink = one;
        sink = many;
        sink = aligned;
        delete one;
        delete[] many;
        delete aligned;
    }
    printf("%lu %lu\n", bytes, blocks);
    fflush(stdout);
    _exit(thrown == 150 ? 0 : 1);
}
