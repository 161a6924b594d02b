/*
 * Functions whose first instructions are known, each called 100 times by main. What a probe behind the entry would get
 * wrong: a loop that jumps back to there, and a jump from another function.
 */
__asm__(
	".text\n"
	".macro function name\n"
	".globl \\name\n .type \\name, @function\n .balign 16\n \\name: .cfi_startproc\n"
	".endm\n"
	".macro done name\n"
	".cfi_endproc\n .size \\name, . - \\name\n"
	".endm\n"

	"function pushes\n push %rbp\n .cfi_adjust_cfa_offset 8\n pop %rbp\n .cfi_adjust_cfa_offset -8\n ret\n done pushes\n"

	"function tests\n test %rdi, %rdi\n je 1f\n mov %rdi, %rax\n1: ret\n done tests\n"

	"function writes_an_argument\n mov %rsi, %rdi\n test %rdi, %rdi\n je 1f\n1: ret\n done writes_an_argument\n"

	"function moves_the_stack\n sub $8, %rsp\n .cfi_adjust_cfa_offset 8\n test %rdi, %rdi\n je 1f\n"
	"1: add $8, %rsp\n .cfi_adjust_cfa_offset -8\n ret\n done moves_the_stack\n"

	/* Linux executes nops of several bytes itself since 6.18 */
	"function nops\n nopl 0(%rax,%rax)\n sub $8, %rsp\n .cfi_adjust_cfa_offset 8\n"
	" add $8, %rsp\n .cfi_adjust_cfa_offset -8\n mov %rdi, %rax\n ret\n done nops\n"

	/* five rounds a call: the jump is what could be probed, and leads to before itself */
	"function loops\n xor %eax, %eax\n1: add $1, %rax\n cmp $5, %rax\n jb 1b\n ret\n done loops\n"

	"function entered\n test %rdi, %rdi\ninside: je 1f\n mov %rdi, %rax\n1: ret\n done entered\n"

	"function enters\n push %rbp\n .cfi_adjust_cfa_offset 8\n pop %rbp\n .cfi_adjust_cfa_offset -8\n"
	" test %rdi, %rdi\n .byte 0xe9\n .long inside - . - 4\n done enters\n");

long pushes(long), tests(long), writes_an_argument(long, long), moves_the_stack(long), loops(long), entered(long),
	enters(long), nops(long);

int main(void)
{
	long sum = 0;

	for (int i = 0; i < 100; i++)
		sum += pushes(i) + tests(i) + writes_an_argument(i, i) + moves_the_stack(i) + loops(i) + entered(i) + enters(i) + nops(i);
	return sum == 0;
}
