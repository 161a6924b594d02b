/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Programs that may be preempted while another task runs them on the same CPU.
 *
 * Which do: a program of a uprobe always (kernel/trace/bpf_trace.c, uprobe_prog_run(), and
 * bpf_prog_run_array_uprobe(), which only disable migration). All others run with preemption off, or
 * are skipped by the kernel while they are in flight on that CPU (counted: recursion_misses).
 *
 * Why it matters: since Linux 6.13 a program of these types has its stack in per-CPU memory once a
 * frame is 64 bytes or larger (kernel/bpf/verifier.c, bpf_enable_priv_stack()), which is only right
 * for programs that never nest on a CPU. The kernel does not make that exception for uprobes: two
 * threads write into each other's frames, and the kernel crashes.
 *
 * Two cures, each enough on its own, at every entry point:
 *  - RUN_UNPREEMPTED disables preemption around a function that is not inlined: the entry point's
 *    own frame stays below 64 bytes. (Linux 6.10; before 6.13 nothing is wrong without it.)
 *  - ON_TASK_STACK: a program with a tail call, reachable or not, keeps its frames on the task's
 *    kernel stack (check_max_stack_depth(): has_tail_call). This one is never reached, and gone
 *    once the program is verified.
 */
#ifndef VMAUDIT_PREEMPT_H
#define VMAUDIT_PREEMPT_H

#include "vmaudit_core.h"

extern void bpf_preempt_disable(void) __ksym __weak;
extern void bpf_preempt_enable(void) __ksym __weak;

/* never set: what depends on it is verified to be unreachable */
const volatile bool never = false;

#define ON_TASK_STACK(ctx)                       \
	do {                                     \
		if (never)                       \
			bpf_tail_call(ctx, 0, 0); \
	} while (0)

#define RUN_UNPREEMPTED(call)                                     \
	do {                                                      \
		if (bpf_ksym_exists(bpf_preempt_disable)) {       \
			bpf_preempt_disable();                    \
			call;                                     \
			bpf_preempt_enable();                     \
		} else {                                          \
			call;                                     \
		}                                                 \
	} while (0)

#endif
