/* Loads the library of go_shared.go (its path is the argument), waits for a line, and calls it. */
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv)
{
	void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW) : NULL;
	void (*grow)(int) = library ? (void (*)(int))dlsym(library, "Grow") : NULL;

	if (!grow)
		return 1;
	puts("READY");
	fflush(stdout);
	getchar();
	for (int turn = 0; turn < 4; turn++)
		grow(80 + 10 * turn);
	return 0;
}
