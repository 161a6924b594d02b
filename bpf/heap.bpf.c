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

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, VMAUDIT_HEAP_FUNCTIONS);
	__type(key, __u32);
	__type(value, struct vmaudit_heap_function);
} functions SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY); /* as `counters` in rings.h */
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct vmaudit_heap_counts);
} heap_counters SEC(".maps");

struct heap_event {
	__u64 op;
	__u64 function;
	__u64 flags;
	__u64 args[4];
	__u64 code; /* --combined: rules are wanted for its stack */
};

/* A thread's outermost call, from its entry to its return; sp is 0 where there is none. */
struct heap_call {
	__u64 sp; /* at entry: where the return address is */
	__u64 size;
	__u64 old;
	__u64 context;
	__u64 result; /* its value, or its address, by `result_at` */
	__u64 parent;
	__u64 name;
	__u32 function;
	__u8 action;
	__u8 size_at; /* where they are if not known yet: enum vmaudit_heap_where */
	__u8 result_at;
	__u8 sampled; /* enum sampled_part */
	__u8 unmaps;  /* in a call that unmaps code */
	__u8 taken;   /* the block that is resized is `moved`: counted in the kernel */
	struct counted_block moved;
	/* what its return reports; here, because BPF's stack is small */
	struct heap_event event;
	struct counted_block block, stale;
	/* the newest free, which has no return probe */
	__u64 freed;
	__u64 freed_sp;
	__u64 freed_by;
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct heap_call);
} calls SEC(".maps");

static __always_inline void heap_count(enum vmaudit_heap_counter which)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct vmaudit_heap_counts *counts = bpf_map_lookup_elem(&heap_counters, &cpu);

	if (counts)
		__sync_fetch_and_add(&counts->of[which], 1);
}

#include "heap_sample.h"
#include "heap_combined.h"
#include "heap_records.h"

/* What a function was entered with. */
struct entry {
	__u64 arguments[8]; /* from 1; 0 and 7: 0 */
	__u64 ip, sp;
};

/* Loads from the context have to be at fixed offsets. */
static __always_inline void look_at_entry(struct entry *entry, struct pt_regs *regs)
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

/* ---- calls ---------------------------------------------------------------------------- */

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
	look_at_entry(entry, regs);
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
		/* where there is no room, the next allocation tries again */
		if (sent)
			combined_named(&call->block.site);
	} else if (!sent && !send_without_stack(thread, &call->event)) {
		heap_count(VMAUDIT_HEAP_LOST_ALLOCATIONS);
		if (what == REPORT_ALLOCATION)
			sample_forget(task, call->event.args[0]);
	}
}

/* ---- ways to be attached --------------------------------------------------------------- */

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

/* Linux 6.13: entry and return in one; 1 at entry: no return wanted. */
SEC("uprobe.session")
int heap_session(struct pt_regs *ctx)
{
	bool returned;
	int wanted = 0;

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
	RUN_UNPREEMPTED(wanted = unpreempted_entry(ctx));
	return !wanted;
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
