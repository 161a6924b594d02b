// SPDX-License-Identifier: MIT OR Apache-2.0
// Runs in containers. Obeys one letter a line on standard input, and answers each with it:
//   m  maps 3 MiB from reserve_inner() < reserve_outer()
//   f  forks a child that maps 5 MiB and stays
//   t  starts a thread called "helper" that maps 7 MiB and stays
//   u  removes its own binary        r  puts another file in its place
//   h  keeps 100 blocks of 1,000 bytes of malloc, from keep_inner() < keep_outer()
//   c  forks a child that keeps 50 blocks of 500 bytes and stays
//   q  ends
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#define KEEP __attribute__((noinline, noipa))

KEEP char *reserve_inner(size_t mib)
{
	char *at = mmap(0, mib << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED)
		exit(3);
	at[0] = 1;
	return at;
}

KEEP int reserve_outer(size_t mib)
{
	return reserve_inner(mib)[0] + 1;
}

static void *volatile kept[10000];
static int count;

KEEP void keep_inner(int blocks, size_t size)
{
	for (int i = 0; i < blocks && count < 10000; i++)
		kept[count++] = malloc(size);
}

KEEP int keep_outer(int blocks, size_t size)
{
	keep_inner(blocks, size);
	return count;
}

static int ready[2];

static void say_ready(void)
{
	if (write(ready[1], "x", 1) != 1)
		_exit(4);
}

static void *helper(void *unused)
{
	prctl(PR_SET_NAME, "helper");
	reserve_outer(7);
	say_ready();
	for (;;)
		pause();
	return unused;
}

static void child(void)
{
	prctl(PR_SET_PDEATHSIG, 9);
	reserve_outer(5);
	say_ready();
	for (;;)
		pause();
}

static void holder(void)
{
	prctl(PR_SET_PDEATHSIG, 9);
	keep_outer(50, 500);
	say_ready();
	for (;;)
		pause();
}

static void replace(const char *self)
{
	char other[4096];
	int fd;

	snprintf(other, sizeof(other), "%s.new", self);
	fd = open(other, O_CREAT | O_WRONLY | O_TRUNC, 0755);
	if (fd < 0 || write(fd, "not the program", 15) != 15 || rename(other, self))
		exit(5);
	close(fd);
}

int main(int argc, char **argv)
{
	char line[64], x;
	pthread_t thread;

	(void)argc;
	if (pipe(ready))
		return 2;
	puts("READY");
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin)) {
		switch (line[0]) {
		case 'm':
			reserve_outer(3);
			break;
		case 'f':
			if (fork() == 0)
				child();
			if (read(ready[0], &x, 1) != 1)
				return 6;
			break;
		case 't':
			if (pthread_create(&thread, 0, helper, 0) || read(ready[0], &x, 1) != 1)
				return 7;
			break;
		case 'h':
			keep_outer(100, 1000);
			break;
		case 'c':
			if (fork() == 0)
				holder();
			if (read(ready[0], &x, 1) != 1)
				return 9;
			break;
		case 'u':
			if (unlink(argv[0]))
				return 8;
			break;
		case 'r':
			replace(argv[0]);
			break;
		case 'q':
			return 0;
		}
		fputs(line, stdout);
		fflush(stdout);
	}
	return 0;
}
