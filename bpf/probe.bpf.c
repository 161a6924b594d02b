// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Counts the calls of functions: a probe's cookie is its function's index in the table of counts. The
 * counts are kept here, so that nothing is lost at any rate; stacks, where requested, go
 * through the ring, and what found no space there is the difference of the two.
 */
#include "vmaudit_core.h"
#include "preempt.h"
#include "may_see.h"
#include "record.h"
#include "rings.h"
#include "stack.h"
#include "probe.h"

/* keeps the type in this object's BTF */
struct vmaudit_record record_type = {};
enum vmaudit_probe_op op_type = 0;

/* set by user space before loading */
const volatile bool only_marked = false;
const volatile bool with_stacks = false;
const volatile __s32 own_pid = 0;

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} calls SEC(".maps");

static __always_inline bool is_marked(struct traced_thread *thread)
{
	return thread && thread->low != VMAUDIT_BEFORE_EXEC;
}

/* A process is marked by its first thread, so that threads that ran before need no mark of their own;
 * those that are created later have one, in case they execute a program and become the first. */
static __always_inline struct traced_thread *mark_of(struct task_struct *task)
{
	struct traced_thread *thread = bpf_task_storage_get(&threads, task, 0, 0);
	struct task_struct *leader;

	if (thread)
		return thread;
	leader = task->group_leader;
	return leader ? bpf_task_storage_get(&threads, leader, 0, 0) : 0;
}

static __always_inline void fill_probed(struct vmaudit_record *record, struct traced_thread *thread,
					struct pt_regs *regs, __u32 index, __u64 flags)
{
	identify_thread(record, thread, VMAUDIT_OP_PROBED);
	record->mm = (__u64)mm_of(bpf_get_current_task_btf());
	record->flags = flags;
	record->ret = index;
	ARCH_REGS(record, regs);
}

#define FILL_PROBED(record) fill_probed(record, thread, regs, index, flags)
#define PROBED_CLASS(bytes) SEND_STACK(bytes, ring, wake, FILL_PROBED, RESTORE_RETURNS)

static __always_inline enum copied probed_whole(struct traced_thread *thread, struct pt_regs *regs, __u32 index,
						__u64 flags)
{
	__u64 to_copy = *(volatile __u64 *)&thread->to_copy, sp = regs->sp, wake = wake_flags();

	PROBED_CLASS(512)
	PROBED_CLASS(1024)
	PROBED_CLASS(2048)
	PROBED_CLASS(4096)
	PROBED_CLASS(8192)
	PROBED_CLASS(16384)
	PROBED_CLASS(65536)
	PROBED_CLASS(262144)
	return NO_SPACE;
}

/* Pages that are not there are zeros. */
static __noinline int probed_with_holes(struct traced_thread *thread, struct pt_regs *regs, __u32 index,
					__u64 flags)
{
	struct pieces pieces = { .from = regs->sp };
	__u64 to_copy = *(volatile __u64 *)&thread->to_copy, wake = wake_flags();

	SEND_STACK_WITH_HOLES(8192, ring, wake, FILL_PROBED)
	SEND_STACK_WITH_HOLES(65536, ring, wake, FILL_PROBED)
	SEND_STACK_WITH_HOLES(262144, ring, wake, FILL_PROBED)
	return NO_SPACE;
}

static __always_inline void send_probed(struct task_struct *task, struct traced_thread *thread,
					struct pt_regs *regs, __u32 index)
{
	__u64 flags = 0;

	know_numbers(task, thread);
	note_returns(task, thread);
	measure_stack(task, thread, regs->sp, INSIST, &flags);
	if (probed_whole(thread, regs, index, flags) == HOLED)
		probed_with_holes(thread, regs, index, flags);
}

static __always_inline void on_call(struct pt_regs *regs, __u32 index)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct traced_thread *thread = 0;
	__u64 *count;

	if (only_marked) {
		thread = mark_of(task);
		if (!is_marked(thread))
			return;
	} else if (pid_of(task) == own_pid) {
		return;
	}
	if (!may_see(task))
		return;
	count = bpf_map_lookup_elem(&calls, &index);
	if (!count)
		return;
	__sync_fetch_and_add(count, 1);
	if (!with_stacks)
		return;
	/* of its own: where this thread's stack ends */
	thread = bpf_task_storage_get(&threads, task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (thread)
		send_probed(task, thread, regs, index);
}

/* Uprobes' programs are preempted: preempt.h. */
static __noinline int unpreempted_call(struct pt_regs *ctx)
{
	on_call(ctx, bpf_get_attach_cookie(ctx));
	return 0;
}

/* Linux 6.6: many functions at once. */
SEC("uprobe.multi")
int probed_many(struct pt_regs *ctx)
{
	ON_TASK_STACK(ctx);
	RUN_UNPREEMPTED(unpreempted_call(ctx));
	return 0;
}

/* Before: one by one. */
SEC("uprobe")
int probed_one(struct pt_regs *ctx)
{
	ON_TASK_STACK(ctx);
	RUN_UNPREEMPTED(unpreempted_call(ctx));
	return 0;
}

/* Children of marked processes are marked. Not loaded where the tracer of mappings does that. */
static __always_inline int on_fork(struct task_struct *parent, struct task_struct *child)
{
	if (!is_marked(mark_of(parent)))
		return 0;
	if (!bpf_task_storage_get(&threads, child, 0, BPF_LOCAL_STORAGE_GET_F_CREATE))
		count(VMAUDIT_LOST_TASKS);
	return 0;
}

/* What vmaudit's own child does before it becomes the command is not the command's. */
static __always_inline int on_exec(struct task_struct *task)
{
	struct traced_thread *thread = bpf_task_storage_get(&threads, task, 0, 0);

	if (thread) {
		thread->low = 0;
		thread->high = 0;
		thread->pid = 0;
	}
	return 0;
}

/* Spares, as in tasks.h: where more than one of them runs, the second does no harm. */
#define FOLLOW_PROGRAMS(suffix)                                                                       \
	SEC("tp_btf/sched_process_fork")                                                              \
	int BPF_PROG(follow_fork##suffix, struct task_struct *parent, struct task_struct *child)      \
	{                                                                                             \
		return on_fork(parent, child);                                                        \
	}                                                                                             \
	SEC("tp_btf/sched_process_exec")                                                              \
	int BPF_PROG(follow_exec##suffix, struct task_struct *task)                                   \
	{                                                                                             \
		return on_exec(task);                                                                 \
	}

FOLLOW_PROGRAMS()
FOLLOW_PROGRAMS(_spare)
FOLLOW_PROGRAMS(_spare2)

#define IS_COUNTED(task) is_marked(mark_of(task))
#include "newcomers.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";
