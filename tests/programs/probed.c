/* Known numbers of calls: leaf 700 times by one, 301 times by two (once in a child), and never() never. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

__attribute__((noinline)) int leaf(int x)
{
	__asm__ volatile("");
	return x * 3 + 1;
}

__attribute__((noinline)) int one(int x)
{
	return leaf(x) + 1;
}

__attribute__((noinline)) int two(int x)
{
	return leaf(x) + 2;
}

__attribute__((noinline, alias("two"))) int other_name_of_two(int x);

__attribute__((noinline, used)) int never(int x)
{
	__asm__ volatile("");
	return x;
}

int main(int argc, char **argv)
{
	int i, sum = 0;

	/* for -p: begin on command */
	if (argc > 1) {
		puts("ready");
		fflush(stdout);
		if (getchar() == EOF)
			return 1;
	}
	for (i = 0; i < 700; i++)
		sum += one(i);
	for (i = 0; i < 300; i++)
		sum += two(i);
	if (!fork())
		_exit(two(sum) == 0);
	wait(NULL);
	return 3;
}
