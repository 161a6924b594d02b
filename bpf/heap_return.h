/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * A function returns: what became of its call is reported. Included by heap.bpf.c.
 */
#ifndef VMAUDIT_HEAP_RETURN_H
#define VMAUDIT_HEAP_RETURN_H

/* A value that is known at the return; `before` is what at_entry() gave. */
static __always_inline __u64 at_return(struct pt_regs *regs, __u8 where, __u64 before)
{
	__u64 value = 0;

	if (where == VMAUDIT_WHERE_RETURNED)
		return ARCH_FUNCTION_RESULT(regs);
	if (!(where & VMAUDIT_WHERE_POINTEE))
		return before;
	/* int: the upper half of the register is not its */
	if (!(__u32)ARCH_FUNCTION_RESULT(regs))
		bpf_probe_read_user(&value, sizeof(value), (void *)before);
	return value;
}

/* What becomes of a call's event. */
enum reported {
	REPORT_NOTHING,
	REPORT_EVENT,
	REPORT_ALLOCATION, /* a sampled one: forgotten where it is lost */
	REPORT_SITE,       /* --combined: only whose stack it is */
};

static __always_inline enum reported resize_ends(struct heap_call *call, struct task_struct *task, __u64 result)
{
	struct heap_event *event = &call->event;
	bool failed = !result && call->size;

	event->op = VMAUDIT_OP_RESIZE_ENDED;
	if (failed) {
		event->flags = VMAUDIT_HEAP_FAILED;
		sample_keep(task, call->old);
	} else if (!(call->sampled & SAMPLED_NEW) || (result && !sample_keep(task, result))) {
		result = 0;
	}
	event->args[0] = call->old;
	event->args[1] = result;
	event->args[2] = call->size;
	event->args[3] = call->context;
	return REPORT_EVENT;
}

static __always_inline enum reported allocation_ends(struct heap_call *call, struct traced_thread *thread,
						     struct pt_regs *regs, __u64 result)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct heap_event *event = &call->event;
	int outcome = COMBINED_NOT;

	if (!result) {
		if (call->size)
			send_refused(thread, call->function, call->size);
		return REPORT_NOTHING;
	}
	/* a context's end frees what is in it: only user space knows what that is */
	if (combined && !call->context) {
		outcome = combined_allocated(regs, result, call);
		if (outcome == COMBINED_COUNTED)
			return REPORT_NOTHING;
		event->code = call->block.site.code;
	}
	if (outcome == COMBINED_NAMELESS) {
		event->op = VMAUDIT_OP_SITE;
		event->args[0] = call->block.site.code;
		event->args[1] = call->block.site.first;
		event->args[2] = call->block.site.second;
		return REPORT_SITE;
	}
	event->op = VMAUDIT_OP_ALLOCATED;
	event->args[0] = result;
	event->args[1] = call->size;
	event->args[2] = call->context;
	if (sample_keep(task, result))
		return REPORT_ALLOCATION;
	heap_count(VMAUDIT_HEAP_SEEN);
	heap_count(VMAUDIT_HEAP_LOST_ALLOCATIONS);
	return REPORT_NOTHING;
}

/* What is to be reported of a call that returns. */
static __always_inline enum reported call_ends(struct heap_call *call, struct task_struct *task,
					       struct traced_thread *thread, struct pt_regs *regs)
{
	struct heap_event *event = &call->event;
	__u64 result = at_return(regs, call->result_at, call->result);

	__builtin_memset(event, 0, sizeof(*event));
	event->function = call->function;
	if (call->action == VMAUDIT_ACT_CREATE) {
		if (!result || call->result_at < VMAUDIT_WHERE_RETURNED)
			return REPORT_NOTHING;
		event->op = VMAUDIT_OP_CONTEXT_CREATED;
		event->args[0] = result;
		event->args[1] = call->parent;
		send_created(thread, regs, event, call->name);
		return REPORT_NOTHING;
	}
	if (call->action != VMAUDIT_ACT_ALLOCATE && call->action != VMAUDIT_ACT_RESIZE)
		return REPORT_NOTHING;
	call->size = at_return(regs, call->size_at, call->size);
	sample_late(call->size_at, call->size, &call->sampled);
	if (call->taken) {
		/* as of here a free, and an allocation */
		if (!result && call->size)
			combined_put_back(task, call->old, &call->moved);
		else
			combined_freed(&call->moved, false);
	} else if (call->old && call->sampled & SAMPLED_OLD) {
		return resize_ends(call, task, result);
	}
	return call->sampled & SAMPLED_NEW ? allocation_ends(call, thread, regs, result) : REPORT_NOTHING;
}

static __always_inline void on_return(struct pt_regs *regs)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct traced_thread *thread = bpf_task_storage_get(&threads, task, 0, 0);
	struct heap_call *call;
	bool sent;
	__u64 sp;
	int what;

	if (!thread || is_hidden(task, thread))
		return;
	call = bpf_task_storage_get(&calls, task, 0, 0);
	if (!call || !call->sp)
		return;
	sp = call->sp;
	/* Of a chain of tail calls the first return is as good as the others. */
	if (regs->sp != sp + 8) {
		if (regs->sp > sp + 8) {
			heap_count(VMAUDIT_HEAP_ABANDONED);
			call->sp = 0;
		}
		return;
	}
	call->sp = 0;
	know_numbers(task, thread);
	what = call_ends(call, task, thread, regs);
	if (what == REPORT_NOTHING)
		return;
	if (what != REPORT_SITE)
		heap_count(VMAUDIT_HEAP_SEEN);
	sent = send_heap_stack(task, thread, regs, &call->event);
	if (what == REPORT_SITE) {
		/* where there is no space, the next allocation tries again */
		if (sent)
			combined_named(&call->block.site);
	} else if (!sent && !send_without_stack(thread, &call->event)) {
		heap_count(VMAUDIT_HEAP_LOST_ALLOCATIONS);
		if (what == REPORT_ALLOCATION)
			sample_forget(task, call->event.args[0]);
	}
}

#endif
