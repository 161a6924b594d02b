/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The stack of the goroutine that a thread works for while it is on its own: Go's runtime maps memory there, and the
 * functions that requested it are on the goroutine's stack. It is read in the call, when the goroutine waits for it:
 * a moment later it runs on, here or on another thread.
 */
#ifndef VMAUDIT_LEFT_STACK_H
#define VMAUDIT_LEFT_STACK_H

#include "managed.h"
#include "record.h"
#include "rings.h"
#include "stack.h"
#include "threads.h"

/* A goroutine, and where it left its stack. */
struct goroutine {
	__u64 at;
	__u64 on;      /* the runtime's record of the thread */
	__u64 stack_pointer;
	__u64 call_at; /* the thread's own stack pointer */
	__u64 flags;
};

/* Checked after the bytes were copied: the collector may move the stack of one that is to be scanned. */
static __always_inline bool is_still_there(struct goroutine *of, struct vmaudit_left_stacks *layout)
{
	return user_word(of->at + layout->stack_pointer) == of->stack_pointer &&
	       user_word(of->at + layout->thread) == of->on;
}

static __always_inline void fill_goroutine(struct vmaudit_record *record, struct task_struct *task,
					   struct traced_thread *thread, struct goroutine *of,
					   struct vmaudit_left_stacks *layout)
{
	identify(record, task, thread, VMAUDIT_OP_LEFT_STACK);
	record->flags = of->flags;
	record->ip = user_word(of->at + layout->instruction);
	record->sp = of->stack_pointer;
	record->bp = user_word(of->at + layout->frame_pointer);
	record->args[0] = of->call_at;
	record->args[1] = is_still_there(of, layout);
}

#define FILL_GOROUTINE(record) fill_goroutine(record, task, thread, &of, layout)
#define SEND_GOROUTINE(bytes) SEND_STACK(bytes, ring, BPF_RB_NO_WAKEUP, FILL_GOROUTINE, NOTHING_TO_RESTORE)

/* Where nothing is sent, the stack ends where the thread's own does. Global, so that it is verified once. */
__noinline int send_goroutine(__u32 index, __u64 word)
{
	struct vmaudit_interpreter_files *files = files_with_interpreters();
	struct task_struct *task = bpf_get_current_task_btf();
	struct traced_thread *thread = bpf_task_storage_get(&threads, task, 0, 0);
	struct vmaudit_left_stacks *layout;
	struct goroutine of = {};
	__u64 running, sp, to_copy, bounds[2] = {};

	if (!files || !thread || index >= VMAUDIT_INTERPRETER_FILES)
		return NO_SPACE;
	layout = &file_at(files, index)->left_stacks;
	running = layout->running_in_word ? user_word(word) : layout->running;
	/* the loader has not written it yet */
	if (!running)
		return NO_SPACE;
	running = user_word(ARCH_THREAD_POINTER(task) + running);
	of.on = user_word(running + layout->thread);
	/* on a goroutine's stack, or a signal's */
	if (!of.on || user_word(of.on) != running)
		return NO_SPACE;
	of.at = user_word(of.on + layout->current);
	if (!of.at || user_word(of.at + layout->thread) != of.on)
		return NO_SPACE;
	if (bpf_probe_read_user(bounds, sizeof(bounds), (void *)of.at))
		return NO_SPACE;
	sp = of.stack_pointer = user_word(of.at + layout->stack_pointer);
	if (sp < bounds[0] || sp >= bounds[1] || !has_space_for_stack())
		return NO_SPACE;
	to_copy = bounds[1] - sp;
	if (to_copy <= stack_bytes)
		of.flags = VMAUDIT_STACK_FULL;
	else
		to_copy = stack_bytes;
	of.call_at = ((struct pt_regs *)bpf_task_pt_regs(task))->sp;
	*(volatile __u64 *)&thread->to_copy = to_copy;
	to_copy = *(volatile __u64 *)&thread->to_copy;
	SEND_GOROUTINE(1024)
	SEND_GOROUTINE(4096)
	SEND_GOROUTINE(16384)
	SEND_GOROUTINE(65536)
	SEND_GOROUTINE(262144)
	return NO_SPACE;
}

/* Before the record of the current thread's call: what is on its stack, but not for all to see. */
static __always_inline void send_more_of_stack(__u64 *mm, __u64 sp)
{
	struct vmaudit_interpreter_files *files = files_with_interpreters();
	struct vmaudit_interpreter *found;
	__u32 index;

	if (!files || !files->mapped)
		return;
	found = bpf_map_lookup_elem(&interpreters, mm);
	if (!found)
		return;
	index = found->file;
	if (index >= VMAUDIT_INTERPRETER_FILES)
		return;
	if (file_at(files, index)->left_stacks.thread)
		send_goroutine(index, found->runtime);
	else
		send_managed(sp);
}

#endif
