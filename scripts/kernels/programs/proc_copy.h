/* Copies a file of /proc into another, without allocating: nothing is mapped between this and the exit. */
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

static void proc_copy(const char *from, const char *to)
{
    static char buffer[1 << 16];
    int in = open(from, O_RDONLY), out = open(to, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    ssize_t got;

    if (in < 0 || out < 0)
        _exit(9);
    while ((got = read(in, buffer, sizeof(buffer))) > 0)
        if (write(out, buffer, (size_t)got) != got)
            _exit(9);
    close(in);
    close(out);
}
