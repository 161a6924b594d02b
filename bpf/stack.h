/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The bytes of the user stack that exist: where they end, and their way into a ring.
 */
#ifndef VMAUDIT_STACK_H
#define VMAUDIT_STACK_H

#include "find_vma.h"
#include "threads.h"

/* set by user space before loading */
const volatile __u64 stack_bytes = 65536;

#define PLAUSIBLE_STACK (64ULL << 20)

/* Where the bytes worth copying end: the end of the stack mapping, or, nearer, where the
 * kernel put the arguments (main thread) or the thread control block lies (others). */
static __always_inline __u64 stack_end(struct task_struct *task, struct traced_thread *thread, __u64 sp,
					enum patience patience)
{
	struct found_vma found = {};
	struct mm_struct *mm;
	__u64 arguments, control_block, end;

	if (sp >= thread->low && sp < thread->high)
		return thread->high;
	mm = mm_of(task);
	if (!mm)
		return 0;
	arguments = BPF_CORE_READ(mm, start_stack);
	control_block = ARCH_THREAD_POINTER(task);
	if (!find_vma(task, sp, patience, &found)) {
		if (control_block > sp && control_block - sp < PLAUSIBLE_STACK)
			return control_block;
		return arguments > sp && arguments - sp < PLAUSIBLE_STACK ? arguments : 0;
	}
	end = found.end;
	if (arguments > sp && arguments < end)
		end = arguments;
	if (control_block > sp && control_block < end)
		end = control_block;
	thread->low = found.start;
	thread->high = end;
	return end;
}

/* Sets how many bytes from `sp` on to copy; flags: VMAUDIT_STACK_FULL when that is all there is. */
static __always_inline void measure_stack(struct task_struct *task, struct traced_thread *thread, __u64 sp,
					  enum patience patience, __u64 *flags)
{
	__u64 end = stack_end(task, thread, sp, patience);
	__u64 to_copy = end > sp ? end - sp : 0;

	if (!end)
		to_copy = ARCH_PAGE_SIZE - (sp & (ARCH_PAGE_SIZE - 1)); /* at least this page exists */
	else if (to_copy <= stack_bytes)
		*flags |= VMAUDIT_STACK_FULL;
	if (to_copy > stack_bytes)
		to_copy = stack_bytes;
	*(volatile __u64 *)&thread->to_copy = to_copy;
}

/* What is read at once where the whole cannot be; divides a page, so that no piece has two. */
#define PIECE 512

struct pieces {
	char *to;
	__u64 from;
	__u64 limit;
	bool holes;
};

/* Copies one aligned piece. bpf_probe_read_user leaves zeros for a page that is not there. */
static long copy_piece(__u32 index, struct pieces *pieces)
{
	__u64 skip = pieces->from & (PIECE - 1);
	__u64 at = index ? index * PIECE - skip : 0;

	if (at > pieces->limit - PIECE)
		return 1;
	if (bpf_probe_read_user(pieces->to + at, index ? PIECE : PIECE - skip, (void *)(pieces->from + at)))
		pieces->holes = true;
	return 0;
}

/* Where the kernel makes a function with a return probe return to, instead of to its caller
 * (kernel/events/uprobes.c, uprobe_get_trampoline_vaddr()). */
static __always_inline __u64 trampoline_of(struct task_struct *task)
{
	struct xol_area *area = BPF_CORE_READ(task, mm, uprobes_state.xol_area);

	return area ? BPF_CORE_READ(area, vaddr) : 0;
}

#define RETURNS 64 /* MAX_URETPROBE_DEPTH */

struct returns {
	char *stack;
	__u64 from;
	__u64 limit;
	__u64 trampoline;
	struct return_instance *next;
};

static long restore_return(__u32 index, struct returns *returns)
{
	struct return_instance *instance = returns->next;
	__u64 at, *word;

	if (!instance)
		return 1;
	returns->next = BPF_CORE_READ(instance, next);
	at = BPF_CORE_READ(instance, stack) - returns->from;
	if (at > returns->limit - sizeof(*word))
		return 0;
	word = (__u64 *)(returns->stack + at);
	if (*word == returns->trampoline)
		*word = BPF_CORE_READ(instance, orig_ret_vaddr);
	return 0;
}

/* Whether return probes (anybody's) have replaced addresses on this thread's stack, to be checked once
 * before it is copied. */
static __always_inline bool note_returns(struct task_struct *task, struct traced_thread *thread)
{
	struct uprobe_task *probed;

	thread->replaced = 0;
	if (!bpf_core_field_exists(struct task_struct, utask))
		return false;
	/* a load: the helper takes a tenth of the whole program */
	probed = for_loads(task)->utask;
	if (!probed)
		return false;
	thread->replaced = (__u64)BPF_CORE_READ(probed, return_instances);
	if (!thread->replaced)
		return false;
	thread->trampoline = trampoline_of(task);
	return true;
}

/* Puts them back: no unwinder knows the way from the kernel's address. */
#define RESTORE_RETURNS(at, start, length)                                        \
	if (thread->replaced) {                                                   \
		struct returns returns = {                                        \
			.stack = (at),                                            \
			.from = (start),                                          \
			.limit = (length),                                        \
			.trampoline = thread->trampoline,                         \
			.next = (struct return_instance *)thread->replaced,       \
		};                                                                \
		bpf_loop(RETURNS, restore_return, &returns, 0);                   \
	}

#define NOTHING_TO_RESTORE(at, start, length)

/* The test and the value in one register: clang tests one copy and uses another, and Linux 6.1's verifier
 * does not know that they are equal. */
#define CLAMP(value, most) \
	asm volatile("if %[v] <= %[m] goto +1\n%[v] = %[m]" : [v] "+r"(value) : [m] "i"(most))

enum copied {
	COPIED,   /* and submitted */
	NO_SPACE, /* in the ring */
	HOLED,    /* a page is not there: to be copied in pieces */
};

/* Reserves space in a ring for exactly one size class, copies `to_copy` bytes from `sp`, has FILL fill
 * in the record before them, submits it, and returns an enum copied from the function around it: a
 * ring's reservations have sizes that the verifier knows. RESTORE puts return addresses back, or is
 * NOTHING_TO_RESTORE. Every class is verified for itself: what comes after is the caller's, once. A wake that is due
 * comes with the first record that may, whatever becomes of it: it is due once. */
#define SEND_STACK(bytes, ring, wake_flags, FILL, RESTORE)                                          \
	if (to_copy <= (bytes)) {                                                                    \
		__u64 length = to_copy;                                                              \
		struct {                                                                            \
			struct vmaudit_record record;                                               \
			char stack[bytes];                                                          \
		} *out = bpf_ringbuf_reserve(&(ring), sizeof(*out), 0);                             \
		if (!out)                                                                           \
			return NO_SPACE;                                                            \
		CLAMP(length, bytes);                                                               \
		if (bpf_probe_read_user(out->stack, length, (void *)sp)) {                          \
			bpf_ringbuf_discard(out, wake_flags);                                        \
			return HOLED;                                                               \
		}                                                                                   \
		RESTORE(out->stack, sp, bytes)                                                     \
		FILL(&out->record);                                                                 \
		out->record.payload = length;                                                       \
		bpf_ringbuf_submit(out, wake_flags);                                                \
		return COPIED;                                                                      \
	}

/* The same in `pieces`, with space for the last one. */
#define SEND_STACK_WITH_HOLES(bytes, ring, wake_flags, FILL)                                        \
	if (to_copy <= (bytes)) {                                                                    \
		struct {                                                                            \
			struct vmaudit_record record;                                               \
			char stack[(bytes) + PIECE];                                                \
		} *out = bpf_ringbuf_reserve(&(ring), sizeof(*out), 0);                             \
		if (!out)                                                                           \
			return NO_SPACE;                                                            \
		FILL(&out->record);                                                                 \
		pieces.to = out->stack;                                                             \
		pieces.limit = (bytes) + PIECE;                                                     \
		bpf_loop((to_copy + PIECE - 1) / PIECE + 1, copy_piece, &pieces, 0);                 \
		if (pieces.holes)                                                                   \
			out->record.flags |= VMAUDIT_STACK_HOLES;                                   \
		RESTORE_RETURNS(out->stack, pieces.from, bytes)                                    \
		out->record.payload = to_copy;                                                       \
		bpf_ringbuf_submit(out, wake_flags);                                                \
		return COPIED;                                                                      \
	}

#endif
