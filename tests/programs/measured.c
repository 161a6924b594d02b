/* Runs a command and writes what it took to a file: "NANOSECONDS_OF_CPU KIB" (its peak of RSS), with what its own
 * children took. Starts it small: a process begins with the largest resident set of the one that started it.
 * measured FILE COMMAND... */
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	struct rusage used;
	int status;
	FILE *file;
	pid_t pid;

	if (argc < 3)
		return 2;
	pid = vfork();
	if (!pid) {
		execvp(argv[2], argv + 2);
		_exit(127);
	}
	if (pid < 0 || wait4(pid, &status, 0, &used) != pid)
		return 2;
	file = fopen(argv[1], "w");
	if (!file)
		return 2;
	fprintf(file, "%ld %ld\n",
		(used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1000000000 +
			(used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1000,
		used.ru_maxrss);
	fclose(file);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
