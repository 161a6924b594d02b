/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * --touch: page faults of traced tasks, with the user stack that took them. Included by
 * vmaudit.bpf.c; neither its program is loaded nor its maps are created without --touch.
 *
 * Every fault is counted. A record is sent of each, until a CPU has sent `touch_budget` of them
 * within a second; from there on of one in 2, 4, 8 …, picked at random among as many, and the
 * record says how many faults it represents.
 */
#ifndef VMAUDIT_TOUCH_H
#define VMAUDIT_TOUCH_H

#include "may_see.h"
#include "record.h"
#include "stack.h"

#define PF_WRITE 2 /* arch/x86/include/asm/trap_pf.h */
#define PF_USER 4
#define SECOND_NS 1000000000ULL
#define BACK_OFF_NS 1000000ULL
#define MAX_PERIOD_SHIFT 20

/* Records a CPU may send within a second before it begins to sample. */
const volatile __u32 touch_budget = 32768;
const volatile __u64 touch_wake_bytes = 1 << 20;

/* A ring of their own: faults are many, and must not crowd out the calls. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 32 << 20);
} touches SEC(".maps");

/* Of one CPU. User space reads the first three. */
struct touch_state {
	__u64 faults;    /* all that were taken */
	__u64 sampled;   /* records sent */
	__u64 lost;      /* faults whose record found no space */
	__u64 window_ns; /* when the current second began */
	__u64 backed_off_ns;
	__u32 taken;     /* records of this second, and what a full ring adds */
	__u32 period;    /* of this group of faults one is sent */
	__u32 at;        /* faults of the group so far */
	__u32 pick;      /* the one to send */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct touch_state);
} touch_states SEC(".maps");

/* A fault's tracepoint record (events/exceptions/page_fault_user/format). */
struct page_fault_args {
	__u64 common;
	__u64 address;
	__u64 ip;
	__u64 error_code;
};

/* How many faults this one represents; 0: it is not the one of its group. */
static __always_inline __u32 touch_weight(struct touch_state *state, __u64 now)
{
	__u32 step = touch_budget / 4 + 1, shift = 0;
	bool picked;

	state->faults += 1;
	if (now - state->window_ns >= SECOND_NS) {
		state->window_ns = now;
		state->taken = 0;
	}
	if (state->at >= state->period) {
		if (state->taken >= touch_budget)
			shift = 1 + (state->taken - touch_budget) / step;
		if (shift > MAX_PERIOD_SHIFT)
			shift = MAX_PERIOD_SHIFT;
		state->period = 1U << shift;
		state->pick = shift ? bpf_get_prandom_u32() & (state->period - 1) : 0;
		state->at = 0;
	}
	picked = state->at == state->pick;
	state->at += 1;
	return picked ? state->period : 0;
}

/* The ring is full: the reader is behind. Sample fewer from now on, in steps. */
static __always_inline void touch_back_off(struct touch_state *state, __u64 now)
{
	if (now - state->backed_off_ns < BACK_OFF_NS)
		return;
	state->backed_off_ns = now;
	if (state->taken < touch_budget)
		state->taken = touch_budget;
	state->taken += touch_budget / 4 + 1;
}

static __always_inline __u64 touch_wake_flags(void)
{
	return bpf_ringbuf_query(&touches, BPF_RB_AVAIL_DATA) >= touch_wake_bytes ? BPF_RB_FORCE_WAKEUP
										  : BPF_RB_NO_WAKEUP;
}

struct touch {
	struct extra extra;
	__u64 address, error_code;
	__u64 weight;
};

static __always_inline void fill_touch(struct vmaudit_record *record, struct traced_thread *thread,
				       struct pt_regs *regs, struct touch *touch)
{
	fill(record, thread, regs, &touch->extra);
	record->op = VMAUDIT_OP_TOUCH;
	record->ret = 0;
	record->args[0] = touch->address;
	record->args[1] = touch->weight;
	record->args[2] = !!(touch->error_code & PF_WRITE);
	record->args[3] = !(touch->error_code & PF_USER);
	record->args[4] = touch->error_code & 1; /* the page was there, but not for this */
	record->args[5] = 0;
}

#define FILL_TOUCH(record) fill_touch(record, thread, regs, touch)
#define SEND_TOUCH_WITH_HOLES(bytes) SEND_STACK_WITH_HOLES(bytes, touches, wake, FILL_TOUCH)
#define SEND_TOUCH(bytes) SEND_STACK(bytes, touches, wake, FILL_TOUCH, NOTHING_TO_RESTORE)

/* The fault is the stack's own growth: its newest page is not there yet. Global, so that it is
 * verified once. */
__noinline int touch_with_holes(struct touch *touch)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct traced_thread *thread = bpf_task_storage_get(&threads, task, 0, 0);
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);
	struct pieces pieces = { .from = regs->sp };
	__u64 to_copy, wake = touch_wake_flags();

	if (!touch || !thread)
		return NO_SPACE;
	to_copy = *(volatile __u64 *)&thread->to_copy;
	SEND_TOUCH_WITH_HOLES(4096)
	SEND_TOUCH_WITH_HOLES(16384)
	SEND_TOUCH_WITH_HOLES(65536)
	SEND_TOUCH_WITH_HOLES(262144)
	return NO_SPACE;
}

static __always_inline enum copied touch_whole(struct traced_thread *thread, struct pt_regs *regs,
					       struct touch *touch)
{
	__u64 to_copy = *(volatile __u64 *)&thread->to_copy, sp = regs->sp, wake = touch_wake_flags();

	SEND_TOUCH(512)
	SEND_TOUCH(1024)
	SEND_TOUCH(1536)
	SEND_TOUCH(2048)
	SEND_TOUCH(4096)
	SEND_TOUCH(8192)
	SEND_TOUCH(16384)
	SEND_TOUCH(65536)
	SEND_TOUCH(262144)
	return NO_SPACE;
}

static __always_inline bool send_touch(struct task_struct *task, struct traced_thread *thread, struct pt_regs *regs,
				       struct touch *touch)
{
	int copied = HOLED;

	/* A stack that grows is not mapped at its pointer yet, and faults come with interrupts off. */
	measure_stack(task, thread, regs->sp, TRY_ONCE, &touch->extra.flags);
	if (!note_returns(task, thread))
		copied = touch_whole(thread, regs, touch);
	if (copied == HOLED)
		copied = touch_with_holes(touch);
	return copied == COPIED;
}

/* On exceptions:page_fault_user, and on page_fault_kernel for what a system call touches on the
 * program's behalf (read(2) into a fresh buffer): its user registers are the caller's. */
/* 1: the event goes on to others who have opened this tracepoint with perf */
SEC("tracepoint")
int page_fault(struct page_fault_args *ctx)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct traced_thread *thread = bpf_task_storage_get(&threads, task, 0, 0);
	struct touch touch = {};
	struct touch_state *state;
	struct mm_struct *mm;
	__u32 first = 0;
	__u64 now;

	if (!thread || is_hidden(task, thread))
		return 1;
	touch.address = ctx->address;
	touch.error_code = ctx->error_code;
	/* Not the program's memory; or a read of it that must not fault pages in, and does not. A plain
	 * load: bpf_probe_read_kernel() disables page faults itself, and would see that. */
	if ((__s64)touch.address < 0 || task->pagefault_disabled)
		return 1;
	mm = mm_of(task);
	state = bpf_map_lookup_elem(&touch_states, &first);
	if (!mm || !state)
		return 1;
	know_numbers(task, thread);
	now = bpf_ktime_get_ns();
	touch.weight = touch_weight(state, now);
	if (!touch.weight)
		return 1;
	touch.extra.mm = (__u64)mm;
	if (send_touch(task, thread, (struct pt_regs *)bpf_task_pt_regs(task), &touch)) {
		state->sampled += 1;
		state->taken += 1;
	} else {
		state->lost += touch.weight;
		touch_back_off(state, now);
	}
	return 1;
}

#endif
