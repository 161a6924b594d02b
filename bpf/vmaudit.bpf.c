// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * One program at system-call exit records what changed an address space: arguments, result,
 * registers and exactly the bytes of the user stack that exist. At exit the six arguments are
 * still in pt_regs and the user stack is as it was at entry.
 */
#include "vmaudit_core.h"
#include "files.h"
#include "interpreters.h"
#include "left_stack.h"
#include "known.h"
#include "may_see.h"
#include "record.h"
#include "rings.h"
#include "stack.h"
#include "tasks.h"

#define MAP_ANONYMOUS 0x20
#define PR_SET_MM 35
#define PR_SET_VMA 0x53564d41
#define EBUSY 16
#define MAX_SYSCALL 512

/* set by user space before loading */
const volatile __u8 op_of_syscall[MAX_SYSCALL] = {};

/* keep the types in this object's BTF, from which user space has them */
struct vmaudit_record record_type = {};
enum vmaudit_op op_type = 0;
enum vmaudit_flag flag_type = 0;
enum vmaudit_special special_type = 0;
enum vmaudit_counter counter_type = 0;
enum vmaudit_hierarchy hierarchy_type = 0;
enum vmaudit_known known_type = 0;
enum vmaudit_managed_end managed_end_type = 0;
enum vmaudit_code code_type = 0;
enum vmaudit_not_there not_there_type = 0;

/* Reads the mapping that a call made. Global functions are verified once, on their own. */
__noinline int read_mapping(__u64 at, __u32 fd, struct extra *extra)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct found_vma found = {};
	struct inode *inode;
	struct file *file;
	__u8 yes = 1;
	__u64 mm;

	if (!extra)
		return 0;
	mm = extra->mm; /* Linux 6.1 takes a key from the stack alone */
	extra->flags |= VMAUDIT_HAS_AUX;
	extra->aux[0] = at;
	if (find_vma(task, at, INSIST, &found)) {
		extra->aux[0] = found.start;
		extra->aux[1] = found.end;
		file = found.file;
		if (found.flags & VM_DONTCOPY)
			bpf_map_update_elem(&keeping, &mm, &yes, BPF_ANY);
	} else {
		/* The lock is held for long. The descriptor is the file's, unless another thread
		 * has closed it already. */
		file = file_of(task, fd);
	}
	if (!file)
		return 0;
	extra->file = (__u64)file;
	inode = inode_of(file);
	extra->ino = BPF_CORE_READ(inode, i_ino);
	extra->nlink = BPF_CORE_READ(inode, i_nlink);
	extra->dev = BPF_CORE_READ(inode, i_sb, s_dev);
	extra->flags |= VMAUDIT_HAS_FILE;
	return 0;
}

/* A call on its way into the ring. */
struct call {
	struct extra extra;
	__u64 op;
	__s64 ret;
};

#define FILL_CALL(record) fill_call(record, thread, regs, &call->extra, call->op, call->ret)
#define SEND_CALL_WITH_HOLES(bytes) SEND_STACK_WITH_HOLES(bytes, ring, wake, FILL_CALL)
#define SEND_CALL(bytes) SEND_STACK(bytes, ring, wake, FILL_CALL, NOTHING_TO_RESTORE)

/* A page that a large local variable spans but that was never touched has no frame to read, and
 * none may be faulted in here. It is zeros for the program, too; but a page may also be swapped
 * out, which is not known here: the record says that there are holes. Global, so that it is
 * verified once. */
__noinline int send_with_holes(struct call *call)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct traced_thread *thread = bpf_task_storage_get(&threads, task, 0, 0);
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);
	struct pieces pieces = { .from = regs->sp };
	__u64 to_copy, wake = wake_flags();

	if (!call || !thread)
		return NO_SPACE;
	to_copy = *(volatile __u64 *)&thread->to_copy;
	SEND_CALL_WITH_HOLES(8192)
	SEND_CALL_WITH_HOLES(65536)
	SEND_CALL_WITH_HOLES(262144)
	return NO_SPACE;
}

static __always_inline enum copied send_whole(struct traced_thread *thread, struct pt_regs *regs, struct call *call)
{
	__u64 to_copy = *(volatile __u64 *)&thread->to_copy, sp = regs->sp, wake = wake_flags();

	SEND_CALL(512)
	SEND_CALL(1024)
	SEND_CALL(1536)
	SEND_CALL(2048)
	SEND_CALL(4096)
	SEND_CALL(8192)
	SEND_CALL(16384)
	SEND_CALL(32768)
	SEND_CALL(65536)
	SEND_CALL(262144)
	return NO_SPACE;
}

static __always_inline bool send_with_stack(struct task_struct *task, struct traced_thread *thread,
					    struct pt_regs *regs, struct call *call)
{
	struct vmaudit_record *record;
	int copied = HOLED;
	bool replaced;

	measure_stack(task, thread, regs->sp, INSIST, &call->extra.flags);
	/* returns are restored there */
	replaced = note_returns(task, thread);
	if (!replaced && call->extra.flags & VMAUDIT_STACK_FULL) {
		call->extra.stack = find_known_stack(&call->extra, regs->ip, regs->sp, thread->to_copy, regs->bp);
		record = call->extra.stack ? bpf_ringbuf_reserve(&ring, sizeof(*record), 0) : 0;
		if (record) {
			FILL_CALL(record);
			record->flags |= VMAUDIT_STACK_KNOWN;
			submit_plain(record);
			count(VMAUDIT_KNOWN_SENT);
			return true;
		}
	}
	if (!has_space_for_stack())
		return false;
	if (!replaced)
		copied = send_whole(thread, regs, call);
	if (copied == HOLED)
		copied = send_with_holes(call);
	if (copied == NO_SPACE)
		wake_soon();
	return copied == COPIED;
}

__noinline int send_name(__u64 at)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct traced_thread *thread = bpf_task_storage_get(&threads, task, 0, 0);
	struct file_record *out;
	long n;

	if (!thread)
		return 0;
	out = bpf_ringbuf_reserve(&ring, sizeof(*out), 0);
	if (!out)
		return 0;
	identify(&out->record, task, thread, VMAUDIT_OP_NAME);
	n = bpf_probe_read_user_str(out->text, VMAUDIT_NAME_MAX, (void *)at);
	out->record.payload = n > 0 ? n & (VMAUDIT_TEXT - 1) : 0;
	bpf_ringbuf_submit(out, BPF_RB_NO_WAKEUP);
	return 0;
}

static __always_inline int on_syscall_exit(__u32 id, long ret)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct traced_thread *thread = bpf_task_storage_get(&threads, task, 0, 0);
	struct vmaudit_record args; /* only its args are used */
	struct call call = {};
	struct extra *extra = &call.extra;
	struct vmaudit_record *record;
	struct mm_struct *mm;
	struct pt_regs *regs;
	__u64 vma_at = 0;
	__u32 op;

	if (!thread || id >= MAX_SYSCALL)
		return 0;
	barrier_var(id); /* or clang drops the mask that the verifier needs */
	op = op_of_syscall[id & (MAX_SYSCALL - 1)];
	if (!op || is_hidden(task, thread))
		return 0;
	mm = for_loads(task)->mm;
	if (!mm)
		return 0;
	know_numbers(task, thread);
	call.op = op;
	call.ret = ret;
	extra->mm = (__u64)mm;
	extra->pid = thread->pid;
	extra->total_vm = mm->total_vm;
	regs = (struct pt_regs *)bpf_task_pt_regs(task);
	ARCH_ARGS(&args, regs);
	if (op == VMAUDIT_OP_PRCTL) {
		if (args.args[0] != PR_SET_VMA && args.args[0] != PR_SET_MM)
			return 0;
		if (args.args[0] == PR_SET_VMA && args.args[4])
			send_name(args.args[4]);
	} else if (op == VMAUDIT_OP_SECCOMP) {
		if (ret != -EBUSY)
			return 0;
	} else if (op == VMAUDIT_OP_BRK) {
		extra->aux[0] = mm->brk;
		extra->flags = VMAUDIT_HAS_AUX;
	} else if (ret >= 0 || ret < -4095) {
		if (op == VMAUDIT_OP_SHMAT)
			vma_at = ret;
		else if (op == VMAUDIT_OP_IO_SETUP)
			bpf_probe_read_user(&vma_at, sizeof(vma_at), (void *)args.args[1]);
		else if (op == VMAUDIT_OP_MMAP && !(args.args[3] & MAP_ANONYMOUS))
			vma_at = ret;
		if (vma_at) {
			read_mapping(vma_at, op == VMAUDIT_OP_MMAP ? args.args[4] : -1, extra);
			if (op == VMAUDIT_OP_MMAP && args.args[2] & PROT_EXEC && files_with_interpreters())
				note_code(extra->ino, extra->dev, vma_at - args.args[5], args.args[5]);
			if (op == VMAUDIT_OP_MMAP && extra->file) {
				send_file(extra->file);
				extra->aux[0] = thread->file;
				if (thread->file)
					extra->flags |= VMAUDIT_FILE_NUMBERED;
			}
		}
	}
	count(VMAUDIT_SEEN);
	send_more_of_stack(&extra->mm, regs->sp);
	if (send_with_stack(task, thread, regs, &call))
		return 0;
	record = reserve_plain();
	if (!record)
		return 0;
	count(VMAUDIT_EVENTS_WITHOUT_STACK);
	fill_call(record, thread, regs, extra, op, ret);
	record->flags |= VMAUDIT_WITHOUT_STACK;
	submit_plain(record);
	return 0;
}

SEC("tracepoint")
int syscall_exit(struct trace_event_raw_sys_exit *ctx)
{
	/* perf passes an int where the event's format has a long: the upper half is not ours */
	on_syscall_exit((__u32)ctx->id, ctx->ret);
	/* 0 would take the event away from everybody else who has opened this tracepoint with perf
	 * (kernel/trace/trace_syscalls.c, perf_call_bpf_exit()) */
	return 1;
}

/* Where the tracepoints' programs are preempted (src/capture/bpf/hooks.rs): on the return of the kernel's
 * function for the call, with preemption off (kernel/trace/bpf_trace.c, kprobe_multi_link_prog_run()). */
SEC("kretprobe.multi")
int syscall_returned(struct pt_regs *ctx)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct pt_regs *user = (struct pt_regs *)bpf_task_pt_regs(task);

	return on_syscall_exit(ARCH_SYSCALL_NR(user), ARCH_FUNCTION_RESULT(ctx));
}

/* Where tracefs cannot be had, so that the per-syscall tracepoints have no ids. Costs every
 * system call on the host more. */
SEC("tp_btf/sys_exit")
int BPF_PROG(any_syscall_exit, struct pt_regs *regs, long ret)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct pt_regs *user = (struct pt_regs *)bpf_task_pt_regs(task);

	return on_syscall_exit(ARCH_SYSCALL_NR(user), ret);
}

#include "touch.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";
