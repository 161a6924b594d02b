// C code that it calls maps 96 MiB itself.
package main

/*
#include <sys/mman.h>

static int grab(void)
{
    char *p = mmap(0, 96 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return 0;
    p[3] = 1;
    return 1;
}
*/
import "C"

func main() {
	if C.grab() == 0 {
		panic("refused")
	}
}
