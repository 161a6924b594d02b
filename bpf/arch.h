/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Everything that depends on the processor. Included within vmaudit_core.h's
 * preserve_access_index section. A port adds a branch here (and src/capture/arch.rs).
 */
#if defined(__TARGET_ARCH_x86)

struct pt_regs {
	unsigned long r15, r14, r13, r12, bp, bx;
	unsigned long r11, r10, r9, r8, ax, cx, dx, si, di;
	unsigned long orig_ax, ip, cs, flags, sp, ss;
};

struct thread_struct {
	unsigned long fsbase;
};

#define ARCH_SYSCALL_NR(regs) ((long)(regs)->orig_ax)

/* __USER32_CS (arch/x86/include/asm/segment.h): the program that was just executed is 32-bit. */
#define ARCH_IS_COMPAT(task) (((struct pt_regs *)bpf_task_pt_regs(task))->cs == 0x23)

/* The six arguments survive until system-call exit (arch/x86/entry/entry_64.S saves them all). */
#define ARCH_ARGS(record, regs)                  \
	do {                                     \
		(record)->args[0] = (regs)->di;  \
		(record)->args[1] = (regs)->si;  \
		(record)->args[2] = (regs)->dx;  \
		(record)->args[3] = (regs)->r10; \
		(record)->args[4] = (regs)->r8;  \
		(record)->args[5] = (regs)->r9;  \
	} while (0)

/* At a function's first instruction, and after its return (System V ABI). */
#define ARCH_FUNCTION_ARG1(regs) ((regs)->di)
#define ARCH_FUNCTION_ARG2(regs) ((regs)->si)
#define ARCH_FUNCTION_ARG3(regs) ((regs)->dx)
#define ARCH_FUNCTION_ARG4(regs) ((regs)->cx)
#define ARCH_FUNCTION_ARG5(regs) ((regs)->r8)
#define ARCH_FUNCTION_ARG6(regs) ((regs)->r9)
#define ARCH_FUNCTION_RESULT(regs) ((regs)->ax)

/* What unwinding needs: instruction and stack pointer and the callee-saved registers. */
#define ARCH_REGS(record, regs)                \
	do {                                   \
		(record)->ip = (regs)->ip;     \
		(record)->sp = (regs)->sp;     \
		(record)->bp = (regs)->bp;     \
		(record)->bx = (regs)->bx;     \
		(record)->r12 = (regs)->r12;   \
		(record)->r13 = (regs)->r13;   \
		(record)->r14 = (regs)->r14;   \
		(record)->r15 = (regs)->r15;   \
	} while (0)

/* The thread control block: pthread stacks end below it. */
#define ARCH_THREAD_POINTER(task) ((task)->thread.fsbase)

#define ARCH_PAGE_SIZE 4096UL

/* A load before which, and after which, no other load of the program is moved: the processor keeps loads in order, so
 * that only the compiler has to. */
#define ARCH_LOAD_IN_ORDER(value, from)                          \
	do {                                                     \
		barrier();                                       \
		(value) = *(volatile typeof(value) *)&(from);    \
		barrier();                                       \
	} while (0)

#else
#error "vmaudit has no arch.h branch for this processor yet"
#endif
