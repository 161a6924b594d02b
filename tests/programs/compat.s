# A 32-bit program: maps a megabyte, forks; the child executes the arguments (without any it exits with
# status 9); the parent waits for it and exits with status 5.
	.globl _start
	.text
_start:
	movl $192, %eax			# mmap2
	xorl %ebx, %ebx
	movl $0x100000, %ecx
	movl $3, %edx
	movl $0x22, %esi
	movl $-1, %edi
	xorl %ebp, %ebp
	int $0x80
	movl $2, %eax			# fork
	int $0x80
	testl %eax, %eax
	jnz parent
	movl 0(%esp), %ecx
	cmpl $2, %ecx
	jl leave
	movl $11, %eax			# execve
	movl 8(%esp), %ebx
	leal 8(%esp), %ecx
	movl 0(%esp), %edx
	leal 8(%esp,%edx,4), %edx
	int $0x80
leave:
	movl $1, %eax			# exit
	movl $9, %ebx
	int $0x80
parent:
	movl $114, %eax			# wait4
	movl $-1, %ebx
	xorl %ecx, %ecx
	xorl %edx, %edx
	xorl %esi, %esi
	int $0x80
	movl $252, %eax			# exit_group
	movl $5, %ebx
	int $0x80
