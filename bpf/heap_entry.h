/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * A function is entered: frees and what changes contexts are reported, and what the return is to report is
 * kept. Included by heap.bpf.c.
 */
#ifndef VMAUDIT_HEAP_ENTRY_H
#define VMAUDIT_HEAP_ENTRY_H

/* What a function was entered with. */
struct entry {
	__u64 arguments[8]; /* from 1; 0 and 7: 0 */
	__u64 ip, sp;
};

/* Loads from the context have to be at fixed offsets. */
static __always_inline void read_entry(struct entry *entry, struct pt_regs *regs)
{
	entry->arguments[0] = 0;
	entry->arguments[1] = ARCH_FUNCTION_ARG1(regs);
	entry->arguments[2] = ARCH_FUNCTION_ARG2(regs);
	entry->arguments[3] = ARCH_FUNCTION_ARG3(regs);
	entry->arguments[4] = ARCH_FUNCTION_ARG4(regs);
	entry->arguments[5] = ARCH_FUNCTION_ARG5(regs);
	entry->arguments[6] = ARCH_FUNCTION_ARG6(regs);
	entry->arguments[7] = 0;
	entry->ip = regs->ip;
	entry->sp = regs->sp;
}

/* A value that is known at entry; for one that an argument points to, the argument. */
static __always_inline __u64 at_entry(struct vmaudit_heap_function *function, struct entry *entry, __u8 where)
{
	__u64 value = 0;

	if (where == VMAUDIT_WHERE_GLOBAL) {
		bpf_probe_read_user(&value, sizeof(value), (void *)(entry->ip + function->global));
		return value;
	}
	return entry->arguments[where & 7];
}

/* True where a function entered with stack pointer `sp` runs on behalf of `call`. A tail call has the
 * same stack pointer and returns to the trampoline, too; any other call there has put its own return
 * address in its place: the earlier call was left by longjmp or an exception. */
static __always_inline bool is_within(struct heap_call *call, struct task_struct *task, __u64 sp)
{
	__u64 word = 0;

	if (sp > call->sp)
		return false;
	if (bpf_probe_read_user(&word, sizeof(word), (void *)call->sp))
		return false;
	return word == trampoline_of(task);
}

/* An allocator's delete that hands over to its own free, both probed: one free. Between two frees of
 * one address by one thread an allocation of it is reported, or another thread's is; then the same
 * function frees again. */
static __always_inline bool freed_already(struct heap_call *call, __u64 pointer, __u32 function, __u64 sp)
{
	return call->freed == pointer && call->freed_by != function && sp <= call->freed_sp;
}

/* Resets, deletions and moves of contexts, and creations where the context is known already. */
static __always_inline void context_changes(struct vmaudit_heap_function *function, struct traced_thread *thread,
					    struct pt_regs *regs, struct entry *entry, __u32 index)
{
	struct heap_event event = { .function = index };
	__u8 action = function->action;

	if (action == VMAUDIT_ACT_CREATE) {
		if (function->result >= VMAUDIT_WHERE_RETURNED)
			return;
		event.op = VMAUDIT_OP_CONTEXT_CREATED;
		event.args[0] = at_entry(function, entry, function->result);
		event.args[1] = at_entry(function, entry, function->parent);
		if (event.args[0])
			send_created(thread, regs, &event, at_entry(function, entry, function->name));
		return;
	}
	event.args[0] = at_entry(function, entry, function->context);
	if (!event.args[0])
		return;
	if (action == VMAUDIT_ACT_MOVE) {
		event.op = VMAUDIT_OP_CONTEXT_MOVED;
		event.args[1] = at_entry(function, entry, function->parent);
	} else {
		event.op = action == VMAUDIT_ACT_RESET ? VMAUDIT_OP_CONTEXT_RESET : VMAUDIT_OP_CONTEXT_DELETED;
		event.args[1] = function->covers;
	}
	send_other(thread, &event);
}

/* True where it has to be known when the function returns. */
static __always_inline bool on_free(struct heap_call *call, struct traced_thread *thread,
				    struct vmaudit_heap_function *function, struct entry *entry, __u32 index)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct heap_event event = { .op = VMAUDIT_OP_FREED, .function = index };
	__u64 pointer = at_entry(function, entry, function->pointer);

	if (!pointer || freed_already(call, pointer, index, entry->sp))
		return false;
	call->freed = pointer;
	call->freed_by = index;
	call->freed_sp = entry->sp;
	if (combined && combined_take(task, pointer, &call->moved)) {
		heap_count(VMAUDIT_HEAP_SEEN);
		combined_freed(&call->moved, false);
	} else if (sample_forget(task, pointer)) {
		event.args[0] = pointer;
		bpf_probe_read_user(&event.args[1], sizeof(event.args[1]), (void *)entry->sp);
		heap_count(VMAUDIT_HEAP_SEEN);
		if (!send_brief(thread, &event))
			heap_count(VMAUDIT_HEAP_LOST_FREES);
	}
	return function->bracket;
}

/* True where the return of the function is of interest. */
static __always_inline bool on_entry(struct pt_regs *regs, __u32 index)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct traced_thread *thread = bpf_task_storage_get(&threads, task, 0, 0);
	struct vmaudit_heap_function *function;
	struct entry at, *entry = &at;
	struct heap_call *call;
	__u64 factor, most;
	bool within;
	__u8 action;

	if (!thread || is_hidden(task, thread))
		return false;
	function = bpf_map_lookup_elem(&functions, &index);
	if (!function)
		return false;
	know_numbers(task, thread);
	action = function->action;
	read_entry(entry, regs);
	call = bpf_task_storage_get(&calls, task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!call) {
		heap_count(VMAUDIT_HEAP_UNTRACKED);
		return false;
	}
	within = call->sp && is_within(call, task, entry->sp);
	if (call->sp && !within) {
		heap_count(VMAUDIT_HEAP_ABANDONED);
		call->sp = 0;
	}
	if (action >= VMAUDIT_ACT_CREATE)
		context_changes(function, thread, regs, entry, index);
	if (within)
		return false;
	call->old = 0;
	if (action == VMAUDIT_ACT_FREE) {
		if (!on_free(call, thread, function, entry, index))
			return false;
	} else {
		call->freed = 0;
	}
	call->size = at_entry(function, entry, function->size);
	call->size_at = function->size;
	if (function->factor) {
		factor = at_entry(function, entry, function->factor);
		most = factor ? ~0ULL / factor : ~0ULL;
		barrier_var(most); /* or clang makes this a 128-bit product */
		call->size = call->size > most ? ~0ULL : call->size * factor;
	}
	/* No address space is as large. The function need not return: operator new throws, and finds no
	 * way past a return address that was replaced. */
	if (call->size >> 56 && action != VMAUDIT_ACT_FREE) {
		send_refused(thread, index, call->size);
		return false;
	}
	if (action == VMAUDIT_ACT_RESIZE)
		call->old = at_entry(function, entry, function->pointer);
	if (action == VMAUDIT_ACT_ALLOCATE || action == VMAUDIT_ACT_RESIZE) {
		call->sampled = sample_begin(task, call->old, call->size,
					     function->size >= VMAUDIT_WHERE_RETURNED &&
						     function->size != VMAUDIT_WHERE_GLOBAL);
		if (!call->sampled)
			return false;
	}
	call->sp = entry->sp;
	call->function = index;
	call->action = action;
	call->result_at = function->result;
	call->result = at_entry(function, entry, function->result);
	call->context = at_entry(function, entry, function->context);
	call->parent = at_entry(function, entry, function->parent);
	call->name = at_entry(function, entry, function->name);
	call->taken = combined && call->old && combined_take(task, call->old, &call->moved);
	if (call->old && !call->taken && call->sampled & SAMPLED_OLD)
		send_resize_begun(thread, index, call->old);
	return true;
}

#endif
