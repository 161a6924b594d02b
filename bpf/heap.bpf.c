// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Probes on the functions of allocators. A table says what each function does with which argument, so
 * that libc's malloc and a database's own allocator are the same to this program.
 *
 * Each byte is counted once: of nested calls of a thread (realloc that calls malloc, operator new that
 * calls malloc) only the outermost is reported. Frees are reported before the function frees, and
 * allocations when it has returned: in the ring, the free of an address is before its next allocation,
 * whichever thread gets it.
 */
#include "vmaudit_core.h"
#include "managed.h"
#include "preempt.h"
#include "may_see.h"
#include "pids.h"
#include "rings.h"
#include "stack.h"
#include "heap.h"

/* keep the types in this object's BTF */
struct vmaudit_record record_type = {};
struct vmaudit_heap_brief brief_type = {};
struct vmaudit_heap_rule_key rule_key_type = {};
struct vmaudit_heap_rule rule_type = {};
struct vmaudit_heap_site_key site_key_type = {};
struct vmaudit_heap_site site_type = {};
enum vmaudit_heap_op heap_op_type = 0;
enum vmaudit_heap_flag heap_flag_type = 0;
enum vmaudit_heap_action action_type = 0;
enum vmaudit_heap_where where_type = 0;
enum vmaudit_heap_counter heap_counter_type = 0;
enum vmaudit_heap_limit limit_type = 0;
enum vmaudit_heap_rule_kind rule_kind_type = 0;

#include "heap_call.h"
#include "heap_sample.h"
#include "heap_combined.h"
#include "heap_records.h"
#include "heap_entry.h"
#include "heap_return.h"

#define IS_COUNTED(task) (bpf_task_storage_get(&threads, task, 0, 0) != 0)
#include "newcomers.h"

/* Uprobes' programs are preempted: preempt.h. */

static __noinline int unpreempted_entry(struct pt_regs *ctx)
{
	return on_entry(ctx, bpf_get_attach_cookie(ctx));
}

static __noinline int unpreempted_return(struct pt_regs *ctx)
{
	on_return(ctx);
	return 0;
}

/* Linux 7.0 gave it an argument; libbpf drops a weak symbol whose type does not fit. */
extern bool bpf_session_is_return(void) __ksym __weak;
extern bool bpf_session_is_return___ctx(void *ctx) __ksym __weak;

/* Linux 6.13: entry and return in one; 1 at entry: no return probe. */
SEC("uprobe.session")
int heap_session(struct pt_regs *ctx)
{
	bool returned;
	int needs_return = 0;

	ON_TASK_STACK(ctx);
	if (bpf_ksym_exists(bpf_session_is_return___ctx))
		returned = bpf_session_is_return___ctx(ctx);
	else if (bpf_ksym_exists(bpf_session_is_return))
		returned = bpf_session_is_return();
	else
		/* Without either every return would count as a call: the verifier refuses this
		 * load, and with it the program. */
		returned = *(volatile bool *)0;
	if (returned) {
		RUN_UNPREEMPTED(unpreempted_return(ctx));
		return 0;
	}
	RUN_UNPREEMPTED(needs_return = unpreempted_entry(ctx));
	return !needs_return;
}

/* Linux 6.6: many functions at once. */
SEC("uprobe.multi")
int heap_entries(struct pt_regs *ctx)
{
	ON_TASK_STACK(ctx);
	RUN_UNPREEMPTED(unpreempted_entry(ctx));
	return 0;
}

SEC("uretprobe.multi")
int heap_returns(struct pt_regs *ctx)
{
	ON_TASK_STACK(ctx);
	RUN_UNPREEMPTED(unpreempted_return(ctx));
	return 0;
}

/* Before: one by one. */
SEC("uprobe")
int heap_entry(struct pt_regs *ctx)
{
	ON_TASK_STACK(ctx);
	RUN_UNPREEMPTED(unpreempted_entry(ctx));
	return 0;
}

SEC("uretprobe")
int heap_return(struct pt_regs *ctx)
{
	ON_TASK_STACK(ctx);
	RUN_UNPREEMPTED(unpreempted_return(ctx));
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
