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
 * arguments tell of: their children are listed. An mm_struct that is used again is only listed in vain. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, __u64);
	__type(value, __u8);
} keeping SEC(".maps");

struct vma_info {
	__u64 start, end, flags, pgoff, file;
	/* of the address space */
	__u64 start_stack, vdso, start_brk, brk;
	__u64 with_path;
};

/* Sends one VMA; 1 when the ring was full. */
__noinline int send_vma(struct vma_info *info)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct vmaudit_record *out;

	if (!info)
		return 1;
	if (info->with_path && info->file)
		send_file(info->file);
	out = bpf_ringbuf_reserve(&ring, sizeof(*out), 0);
	if (!out)
		return 1;
	identify(out, task, VMAUDIT_OP_VMA);
	out->args[0] = info->start;
	out->args[1] = info->end;
	out->args[2] = info->flags;
	out->args[3] = info->pgoff;
	out->args[4] = VMAUDIT_SPECIAL_NONE;
	if (info->file)
		set_file(out, (struct file *)info->file);
	else if (info->start <= info->start_stack && info->start_stack < info->end)
		out->args[4] = VMAUDIT_SPECIAL_STACK;
	else if (info->start == info->vdso)
		out->args[4] = VMAUDIT_SPECIAL_VDSO;
	else if (info->start < info->brk && info->end >= info->start_brk && info->start_brk < info->brk)
		out->args[4] = VMAUDIT_SPECIAL_HEAP;
	bpf_ringbuf_submit(out, BPF_RB_NO_WAKEUP);
	return 0;
}

/* Sends every VMA of `task`'s address space on behalf of the current thread: true if all went
 * out. Needs the open-coded task_vma iterator (Linux 6.7). */
static __always_inline bool send_vmas(struct task_struct *task, bool with_paths)
{
	struct mm_struct *mm = mm_of(task);
	struct vma_info info = {};
	struct vm_area_struct *vma;
	bool sent = false;

	if (!list_vmas || !mm)
		return false;
	info.start_stack = BPF_CORE_READ(mm, start_stack);
	info.vdso = (__u64)BPF_CORE_READ(mm, context.vdso);
	info.start_brk = BPF_CORE_READ(mm, start_brk);
	info.brk = BPF_CORE_READ(mm, brk);
	info.with_path = with_paths;
	bpf_for_each(task_vma, vma, task, 0) {
		info.start = vma->vm_start;
		info.end = vma->vm_end;
		info.flags = vma->vm_flags;
		info.pgoff = vma->vm_pgoff;
		info.file = (__u64)BPF_CORE_READ(vma, vm_file);
		sent = !send_vma(&info);
		if (!sent)
			break;
	}
	return sent;
}

#endif
