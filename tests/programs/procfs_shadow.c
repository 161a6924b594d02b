/* Waits for its standard input to end; built with -fsanitize=address it has 20 TiB mapped.
 *   cc -fsanitize=address -o procfs_shadow procfs_shadow.c
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(void) {
    char *volatile block = malloc(1000);
    puts("ready");
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) > 0) {}
    free(block);
    return 0;
}
