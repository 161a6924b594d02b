/* Calls no function that allocates: exits with its first argument's length. */
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	return argc > 1 && write(1, "quiet\n", 6) == 6 ? (int)strlen(argv[1]) : 99;
}
