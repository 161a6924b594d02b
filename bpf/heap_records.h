/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Heap events on their way into the rings. Included by heap.bpf.c.
 */
#ifndef VMAUDIT_HEAP_RECORDS_H
#define VMAUDIT_HEAP_RECORDS_H

#include "managed.h"
#include "record.h"

static __always_inline void fill_brief(struct vmaudit_heap_brief *out, struct traced_thread *thread,
				       struct heap_event *event)
{
	out->time_ns = bpf_ktime_get_ns();
	out->mm = (__u64)mm_of(bpf_get_current_task_btf());
	out->pid = thread->pid;
	out->tid = thread->tid;
	out->op = event->op;
	out->flags = event->flags;
	out->payload = 0;
	out->function = event->function;
	out->args[0] = event->args[0];
	out->args[1] = event->args[1];
	out->args[2] = event->args[2];
	out->args[3] = event->args[3];
}

/* 72 bytes. */
static __always_inline bool send_brief(struct traced_thread *thread, struct heap_event *event)
{
	struct vmaudit_heap_brief *out = bpf_ringbuf_reserve(&ring, sizeof(*out), 0);

	if (!out)
		return false;
	fill_brief(out, thread, event);
	bpf_ringbuf_submit(out, wake_flags());
	return true;
}

static __always_inline void fill_heap(struct vmaudit_record *record, struct traced_thread *thread,
				      struct pt_regs *regs, struct heap_event *event, __u64 flags)
{
	identify_thread(record, thread, event->op);
	record->mm = (__u64)mm_of(bpf_get_current_task_btf());
	record->flags = event->flags | flags;
	record->ret = event->function;
	record->args[0] = event->args[0];
	record->args[1] = event->args[1];
	record->args[2] = event->args[2];
	record->args[3] = event->args[3];
	record->args[4] = event->code;
	record->args[5] = event->frames;
	record->total_vm = 0;
	ARCH_REGS(record, regs);
}

#define FILL_HEAP(record) fill_heap(record, thread, regs, event, flags)
#define HEAP_CLASS(bytes) SEND_STACK(bytes, ring, wake, FILL_HEAP, RESTORE_RETURNS)

static __always_inline enum copied heap_stack_whole(struct traced_thread *thread, struct pt_regs *regs,
						    struct heap_event *event, __u64 flags)
{
	__u64 to_copy = *(volatile __u64 *)&thread->to_copy, sp = regs->sp, wake = wake_flags();

	HEAP_CLASS(512)
	HEAP_CLASS(1024)
	HEAP_CLASS(1536)
	HEAP_CLASS(2048)
	HEAP_CLASS(3072)
	HEAP_CLASS(4096)
	HEAP_CLASS(6144)
	HEAP_CLASS(8192)
	HEAP_CLASS(12288)
	HEAP_CLASS(16384)
	HEAP_CLASS(32768)
	HEAP_CLASS(65536)
	HEAP_CLASS(262144)
	return NO_SPACE;
}

/* As send_with_holes() of vmaudit.bpf.c: pages that are not there are zeros. */
static __noinline int heap_stack_with_holes(struct traced_thread *thread, struct pt_regs *regs,
					    struct heap_event *event, __u64 flags)
{
	struct pieces pieces = { .from = regs->sp };
	__u64 to_copy = *(volatile __u64 *)&thread->to_copy, wake = wake_flags();

	SEND_STACK_WITH_HOLES(8192, ring, wake, FILL_HEAP)
	SEND_STACK_WITH_HOLES(65536, ring, wake, FILL_HEAP)
	SEND_STACK_WITH_HOLES(262144, ring, wake, FILL_HEAP)
	return NO_SPACE;
}

/* True where an interpreter's were sent. Of a goroutine's stack nothing is read here; and nothing at all where stacks
 * are counted by their native frames alone. */
static __always_inline bool send_interpreted(struct task_struct *task, __u64 sp)
{
	struct vmaudit_interpreter_files *files = files_with_interpreters();
	__u64 mm = (__u64)mm_of(task);
	struct vmaudit_interpreter *found;
	__u32 index;

	if (combined || !files || !files->mapped)
		return false;
	found = bpf_map_lookup_elem(&interpreters, &mm);
	if (!found)
		return false;
	index = found->file;
	if (index >= VMAUDIT_INTERPRETER_FILES || file_at(files, index)->left_stacks.thread)
		return false;
	return send_managed(sp);
}

static __always_inline bool send_heap_stack(struct task_struct *task, struct traced_thread *thread,
					    struct pt_regs *regs, struct heap_event *event)
{
	__u64 flags = 0;
	int copied;

	/* A site's stack is sent once, and many counted allocations have no stack without it: it may have the
	 * space that is kept for the accounts. */
	if (event->op != VMAUDIT_OP_SITE && !has_space_for_stack())
		return false;
	event->frames = send_interpreted(task, regs->sp);
	note_returns(task, thread);
	measure_stack(task, thread, regs->sp, INSIST, &flags);
	copied = heap_stack_whole(thread, regs, event, flags);
	if (copied == HOLED)
		copied = heap_stack_with_holes(thread, regs, event, flags);
	if (copied == NO_SPACE)
		wake_soon();
	return copied == COPIED;
}

/* Where the ring had no space for the stack. */
static __always_inline bool send_without_stack(struct traced_thread *thread, struct heap_event *event)
{
	event->flags |= VMAUDIT_WITHOUT_STACK;
	if (!send_brief(thread, event))
		return false;
	heap_count(VMAUDIT_HEAP_WITHOUT_STACK);
	return true;
}

struct named_record {
	struct vmaudit_record record;
	char text[VMAUDIT_NAME_MAX];
};

static __always_inline void send_created(struct traced_thread *thread, struct pt_regs *regs,
					 struct heap_event *event, __u64 name)
{
	struct named_record *out = bpf_ringbuf_reserve(&ring, sizeof(*out), 0);
	long n;

	heap_count(VMAUDIT_HEAP_SEEN);
	if (!out) {
		if (!send_brief(thread, event))
			heap_count(VMAUDIT_HEAP_LOST_OTHERS);
		return;
	}
	fill_heap(&out->record, thread, regs, event, 0);
	n = name ? bpf_probe_read_user_str(out->text, sizeof(out->text), (void *)name) : 0;
	/* without the NUL */
	out->record.payload = n > 1 ? n - 1 : 0;
	bpf_ringbuf_submit(out, wake_flags());
}

static __always_inline void send_other(struct traced_thread *thread, struct heap_event *event)
{
	heap_count(VMAUDIT_HEAP_SEEN);
	if (!send_brief(thread, event))
		heap_count(VMAUDIT_HEAP_LOST_OTHERS);
}

static __always_inline void send_resize_begun(struct traced_thread *thread, __u32 function, __u64 old)
{
	struct heap_event event = {
		.op = VMAUDIT_OP_RESIZE_BEGUN,
		.function = function,
		.args = { old },
	};

	heap_count(VMAUDIT_HEAP_SEEN);
	if (!send_brief(thread, &event))
		heap_count(VMAUDIT_HEAP_LOST_FREES);
}

static __always_inline void send_refused(struct traced_thread *thread, __u32 function, __u64 size)
{
	struct heap_event event = {
		.op = VMAUDIT_OP_REFUSED,
		.function = function,
		.args = { 0, size },
	};

	send_other(thread, &event);
}

#endif
