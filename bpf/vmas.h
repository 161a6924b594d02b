/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Whole address spaces, VMA by VMA.
 */
#ifndef VMAUDIT_VMAS_H
#define VMAUDIT_VMAS_H

#include "files.h"
#include "record.h"
#include "rings.h"

/* set by user space before loading */
const volatile bool list_vmas = true;

extern int bpf_iter_task_vma_new(struct bpf_iter_task_vma *it, struct task_struct *task, __u64 addr) __ksym __weak;
extern struct vm_area_struct *bpf_iter_task_vma_next(struct bpf_iter_task_vma *it) __ksym __weak;
extern void bpf_iter_task_vma_destroy(struct bpf_iter_task_vma *it) __ksym __weak;

#define VM_DONTCOPY 0x00020000

/* Address spaces (by mm_struct) with a mapping that its driver keeps from forks, and that no call's
 * arguments show: their children are listed. An mm_struct that is used again is only listed in vain. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, __u64);
	__type(value, __u8);
} keeping SEC(".maps");

/* Small: it is on the stack of a long chain of calls. */
struct vma_info {
	__u64 start, end, flags, pgoff, file;
	__u64 mm;
	__u64 with_path;
};

static __always_inline enum vmaudit_special special_of(struct vma_info *info)
{
	struct mm_struct *mm = (struct mm_struct *)info->mm;
	__u64 at = BPF_CORE_READ(mm, start_stack), start_brk;

	if (info->start <= at && at < info->end)
		return VMAUDIT_SPECIAL_STACK;
	if (info->start == (__u64)BPF_CORE_READ(mm, context.vdso))
		return VMAUDIT_SPECIAL_VDSO;
	start_brk = BPF_CORE_READ(mm, start_brk);
	at = BPF_CORE_READ(mm, brk);
	return info->start < at && info->end >= start_brk && start_brk < at ? VMAUDIT_SPECIAL_HEAP
									    : VMAUDIT_SPECIAL_NONE;
}

/* Sends one VMA; 1 when the ring was full. */
__noinline int send_vma(struct vma_info *info)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct traced_thread *thread = bpf_task_storage_get(&threads, task, 0, 0);
	struct vmaudit_record *out;

	if (!info || !thread)
		return 1;
	thread->file = 0;
	if (info->with_path && info->file)
		send_file(info->file);
	out = bpf_ringbuf_reserve(&ring, sizeof(*out), 0);
	if (!out)
		return 1;
	identify(out, task, thread, VMAUDIT_OP_VMA);
	out->args[0] = info->start;
	out->args[1] = info->end;
	out->args[2] = info->flags;
	out->args[3] = info->pgoff;
	out->args[4] = info->file ? VMAUDIT_SPECIAL_NONE : special_of(info);
	if (info->file)
		set_file(out, (struct file *)info->file, thread->file);
	bpf_ringbuf_submit(out, BPF_RB_NO_WAKEUP);
	return 0;
}

static __always_inline void describe_vma(struct vm_area_struct *vma, struct vma_info *info)
{
	info->start = vma->vm_start;
	info->end = vma->vm_end;
	info->flags = vma->vm_flags;
	info->pgoff = vma->vm_pgoff;
	info->file = (__u64)BPF_CORE_READ(vma, vm_file);
}

/* Sends every VMA of `task`'s address space on behalf of the current thread: true if all went
 * out. Needs the open-coded task_vma iterator (Linux 6.7). */
static __always_inline bool send_vmas(struct task_struct *task, bool with_paths)
{
	struct mm_struct *mm = mm_of(task);
	struct vma_info info = { .mm = (__u64)mm, .with_path = with_paths };
	struct vm_area_struct *vma;
	bool sent = false;

	if (!list_vmas || !mm || !bpf_ksym_exists(bpf_iter_task_vma_new))
		return false;
	bpf_for_each(task_vma, vma, task, 0) {
		describe_vma(vma, &info);
		sent = !send_vma(&info);
		if (!sent)
			break;
	}
	return sent;
}

/* ---- without that iterator ------------------------------------------------------------- */

#define RUN_VMAS 64

/* VMAs that adjoin each other. */
struct run {
	struct vma_info info;
	__u64 at; /* an address inside */
	__u64 low, high;
	__u64 sent;
};

static long describe_found(struct task_struct *task, struct vm_area_struct *vma, struct vma_info *info)
{
	describe_vma(vma, info);
	return 0;
}

static long go_down(__u32 index, struct run *run)
{
	if (bpf_find_vma(bpf_get_current_task_btf(), run->at, describe_found, &run->info, 0))
		return 1;
	run->low = run->info.start;
	run->at = run->low - 1;
	return 0;
}

static long go_up(__u32 index, struct run *run)
{
	if (bpf_find_vma(bpf_get_current_task_btf(), run->high, describe_found, &run->info, 0) ||
	    send_vma(&run->info))
		return 1;
	run->high = run->info.end;
	run->sent += 1;
	return 0;
}

/* Sends the VMAs around an address, and says how many; where they lie is left in the thread's `low`
 * and `high`. Global, so that it is verified once. */
__noinline int send_run(__u64 at)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct traced_thread *thread = bpf_task_storage_get(&threads, task, 0, 0);
	struct mm_struct *mm = mm_of(task);
	struct run run = { .info = { .mm = (__u64)mm, .with_path = true }, .at = at };

	if (!thread || !mm)
		return 0;
	bpf_loop(RUN_VMAS, go_down, &run, 0);
	run.high = run.low;
	if (run.low)
		bpf_loop(RUN_VMAS, go_up, &run, 0);
	thread->low = run.low;
	thread->high = run.high;
	return run.sent;
}

/* What execve maps lies in a few runs: the program, its interpreter, the vdso, the stack. True if
 * that was all that is mapped. The thread has no known stack yet. */
static __always_inline bool send_exec_runs(struct task_struct *task, struct traced_thread *thread)
{
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);
	struct mm_struct *mm = mm_of(task);
	__u64 low, high, at, sent;

	if (!list_vmas || !mm)
		return false;
	sent = send_run(BPF_CORE_READ(mm, start_code));
	low = thread->low;
	high = thread->high;
	/* the linker may leave a gap between text and data */
	at = BPF_CORE_READ(mm, start_data);
	if (at < low || at >= high)
		sent += send_run(at);
	/* the interpreter, where there is one */
	at = regs->ip;
	if ((at < low || at >= high) && (at < thread->low || at >= thread->high))
		sent += send_run(at);
	sent += send_run((__u64)BPF_CORE_READ(mm, context.vdso));
	sent += send_run(BPF_CORE_READ(mm, start_stack));
	thread->low = 0;
	thread->high = 0;
	return sent == BPF_CORE_READ(mm, map_count);
}

#endif
