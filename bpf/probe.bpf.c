// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Counts the calls of functions: a probe's cookie is its function's index in the table of counts. The
 * counts are kept here, so that nothing is lost at any rate; stacks, where they are wanted, go
 * through the ring, and what found no room there is the difference of the two.
 */
#include "vmaudit_core.h"
#include "may_see.h"
#include "pids.h"
#include "rings.h"
#include "stack.h"
#include "probe.h"

/* keeps the type in this object's BTF */
struct vmaudit_record record_type = {};

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
 * those that are born later have one, in case they execute a program and become the first. */
static __always_inline struct traced_thread *mark_of(struct task_struct *task)
{
	struct traced_thread *thread = bpf_task_storage_get(&threads, task, 0, 0);
	struct task_struct *leader;

	if (thread)
		return thread;
	leader = task->group_leader;
	return leader ? bpf_task_storage_get(&threads, leader, 0, 0) : 0;
}

static __always_inline void fill_probed(struct vmaudit_record *record, struct task_struct *task,
					struct pt_regs *regs, __u32 index, __u64 flags)
{
	record->time_ns = bpf_ktime_get_ns();
	record->mm = (__u64)mm_of(task);
	record->pid = pid_of(task);
	record->tid = tid_of(task);
	record->op = VMAUDIT_OP_PROBED;
	record->flags = flags;
	record->payload = 0;
	record->ret = index;
	ARCH_REGS(record, regs);
}

#define FILL_PROBED(record) fill_probed(record, task, regs, index, flags)

/* Pages that are not there are zeros. */
static __noinline bool probed_with_holes(struct task_struct *task, struct pt_regs *regs, __u32 index,
					 __u64 flags, __u64 wanted)
{
	struct pieces pieces = { .from = regs->sp };

	SEND_STACK_WITH_HOLES(8192, ring, wake_flags(), FILL_PROBED)
	SEND_STACK_WITH_HOLES(65536, ring, wake_flags(), FILL_PROBED)
	SEND_STACK_WITH_HOLES(262144, ring, wake_flags(), FILL_PROBED)
	return false;
}

static __always_inline bool send_probed(struct task_struct *task, struct traced_thread *thread,
					struct pt_regs *regs, __u32 index)
{
	__u64 flags = 0, sp = regs->sp;
	__u64 wanted = stack_wanted(sp, stack_end(task, thread, sp, INSIST), &flags);

#define PROBED_CLASS(bytes)                                                   \
	SEND_STACK(bytes, ring, wake_flags(), FILL_PROBED,                    \
		   probed_with_holes(task, regs, index, flags, wanted))
	PROBED_CLASS(512)
	PROBED_CLASS(1024)
	PROBED_CLASS(2048)
	PROBED_CLASS(4096)
	PROBED_CLASS(8192)
	PROBED_CLASS(16384)
	PROBED_CLASS(65536)
	PROBED_CLASS(262144)
	return false;
}

static __always_inline void on_call(struct pt_regs *regs, __u32 index)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct traced_thread *thread = 0, fresh = {};
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
	*count += 1;
	if (!with_stacks)
		return;
	/* of its own: where this thread's stack ends */
	thread = bpf_task_storage_get(&threads, task, &fresh, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (thread)
		send_probed(task, thread, regs, index);
}

/* Linux 6.6: many functions at once. */
SEC("uprobe.multi")
int probed_many(struct pt_regs *ctx)
{
	on_call(ctx, bpf_get_attach_cookie(ctx));
	return 0;
}

/* Before: one by one. */
SEC("uprobe")
int probed_one(struct pt_regs *ctx)
{
	on_call(ctx, bpf_get_attach_cookie(ctx));
	return 0;
}

/* Children of marked processes are marked. Not loaded where the tracer of mappings does that. */
SEC("tp_btf/sched_process_fork")
int BPF_PROG(follow_fork, struct task_struct *parent, struct task_struct *child)
{
	struct traced_thread fresh = {};

	if (!is_marked(mark_of(parent)))
		return 0;
	if (!bpf_task_storage_get(&threads, child, &fresh, BPF_LOCAL_STORAGE_GET_F_CREATE))
		count(VMAUDIT_LOST_TASKS);
	return 0;
}

/* What vmaudit's own child does before it becomes the command is not the command's. */
SEC("tp_btf/sched_process_exec")
int BPF_PROG(follow_exec, struct task_struct *task)
{
	struct traced_thread *thread = bpf_task_storage_get(&threads, task, 0, 0);

	if (thread) {
		thread->low = 0;
		thread->high = 0;
	}
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
