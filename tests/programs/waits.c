/* Allocates a little, says ready, and waits for its standard input. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(void)
{
    char *block = malloc(100000);
    block[0] = 1;
    puts("ready");
    fflush(stdout);
    char byte;
    int failed = read(0, &byte, 1) < 0;
    free(block);
    return failed;
}
