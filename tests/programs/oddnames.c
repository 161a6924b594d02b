/* Maps files whose names are hard on parsers, all in the directory argv[1], and leaves them
 * mapped.   oddnames DIR */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    static const char *names[] = {"a b  c", "new\nline", "looks (deleted)", "\xff\xfe\x80 bytes", "back\\012slash", "[heap]", "7f00-8000 r-xp", "\xe2\x82\xac"};
    const size_t n = sizeof names / sizeof *names;
    if (argc < 2 || chdir(argv[1]))
        return 64;
    for (size_t i = 0; i <= n; i++) {
        const char *name = i < n ? names[i] : "gone";
        int fd = open(name, O_RDWR | O_CREAT, 0600);
        if (fd < 0 || ftruncate(fd, 16384)) {
            perror("open");
            return 65;
        }
        char *p = mmap(NULL, 16384, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (p == MAP_FAILED)
            return 66;
        p[0] = 1;
        close(fd);
        if (i == n && unlink(name))
            return 67;
    }
    return 0;
}
