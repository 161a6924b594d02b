/* What is in memory of the program, bytes; without malloc, whose memory is examined. */
#include <stdio.h>

static size_t rss(void)
{
    static char text[4096];
    static FILE *file;
    if (file == NULL && (file = fopen("/proc/self/smaps_rollup", "r")) != NULL)
        setvbuf(file, NULL, _IONBF, 0);
    if (file == NULL)
        return 0;
    rewind(file);
    size_t kib = 0;
    while (fgets(text, sizeof text, file) != NULL)
        if (sscanf(text, "Rss: %zu", &kib) == 1)
            break;
    return kib << 10;
}
