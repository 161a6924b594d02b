/* secret_user FILE CALLS: as often as that makes a context that is called as FILE's first line says, and
 * allocates in it; says its effective uid. Installed setuid it is what su is: a program of root's that
 * hands a secret to a library. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void secret_open(const char *context, const char *name);
void *secret_take(size_t size, const char *context);

int main(int argc, char **argv)
{
	char *names = calloc(1000, 64);
	FILE *file;
	int i;

	if (argc != 3 || !names || !(file = fopen(argv[1], "r")) || !fgets(names, 64, file))
		return 1;
	names[strcspn(names, "\n")] = 0;
	for (i = 0; i < atoi(argv[2]) && i < 1000; i++) {
		char *context = names + 64 * i;

		memmove(context, names, 64);
		secret_open(context, context);
		secret_take(24, context);
	}
	printf("euid %d\n", (int)geteuid());
	return 0;
}
