// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * One program at system-call exit records what changed an address space: arguments, result,
 * registers and exactly the bytes of the user stack that exist. At exit the six arguments are
 * still in pt_regs and the user stack is as it was at entry.
 */
#include "vmaudit_core.h"
#include <stdbool.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include "vmaudit.h"
#include "pids.h"

#define MAP_ANONYMOUS 0x20
#define PR_SET_MM 35
#define PR_SET_VMA 0x53564d41
#define EBUSY 16
#define PF_KTHREAD 0x00200000
#define SIGNAL_GROUP_EXIT 0x00000004
#define VM_GROWSDOWN 0x00000100
#define MAX_SYSCALL 512
#define PATH_COMPONENTS 64

/* set by user space before loading */
const volatile __u64 stack_bytes = 65536;
const volatile bool follow_forks = true;
const volatile bool list_vmas = true;
/* Children of processes that ran before tracing began: what user space knows of the parent is from
 * a look that calls and forks may have overtaken, so each fork is listed. */
const volatile bool list_forks = false;
const volatile __u8 op_of_syscall[MAX_SYSCALL] = {};
/* wake the reader when this many bytes wait, not for each record */
const volatile __u64 wake_bytes = 1 << 20;

/* keeps the record's type in this object's BTF */
struct vmaudit_record record_type = {};
struct vmaudit_found found_type = {};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 16 << 20);
} ring SEC(".maps");

/* Calls for which the main ring had no room: without stack, but known. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4 << 20);
} spill SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, VMAUDIT_COUNTERS);
	__type(key, __u32);
	__type(value, __u64);
} counters SEC(".maps");

/* Present for every traced thread, so it is the filter, too. [low, high) is the part of the
 * stack mapping in use when it was last looked up. */
struct traced_thread {
	__u64 low;
	__u64 high;
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct traced_thread);
} threads SEC(".maps");

extern int LINUX_KERNEL_VERSION __kconfig;

extern int bpf_iter_task_vma_new(struct bpf_iter_task_vma *it, struct task_struct *task, __u64 addr) __ksym __weak;
extern struct vm_area_struct *bpf_iter_task_vma_next(struct bpf_iter_task_vma *it) __ksym __weak;
extern void bpf_iter_task_vma_destroy(struct bpf_iter_task_vma *it) __ksym __weak;

static __always_inline void count(__u32 which)
{
	__u64 *value = bpf_map_lookup_elem(&counters, &which);

	if (value)
		*value += 1;
}

static __always_inline __u64 wake_flags(void)
{
	return bpf_ringbuf_query(&ring, BPF_RB_AVAIL_DATA) >= wake_bytes ? BPF_RB_FORCE_WAKEUP
									  : BPF_RB_NO_WAKEUP;
}

#include "cgroup.h"

/* Pointers that lead away from a task or a VMA are read with the helper, never by a plain load:
 * for each plain load the verifier searches the kernel's whole BTF by name, four times (6.18,
 * kernel/bpf/verifier.c, check_ptr_to_btf_access()). That was half the time a short run took.
 * Only the address space of the hot path is had by a load: once, at its beginning. */
static __always_inline struct mm_struct *mm_of(struct task_struct *task)
{
	return BPF_CORE_READ(task, mm);
}

static __always_inline void identify_task(struct vmaudit_record *record, struct task_struct *task, __u32 op)
{
	record->time_ns = bpf_ktime_get_ns();
	record->pid = pid_of(task);
	record->tid = tid_of(task);
	record->op = op;
	record->flags = 0;
	record->payload = 0;
}

static __always_inline void identify(struct vmaudit_record *record, struct task_struct *task, __u32 op)
{
	struct mm_struct *mm = mm_of(task);

	identify_task(record, task, op);
	record->mm = (__u64)mm;
	record->total_vm = mm ? BPF_CORE_READ(mm, total_vm) : 0;
}

/* A record without payload, from whichever ring has room. */
static __always_inline struct vmaudit_record *reserve_plain(bool *spilled)
{
	struct vmaudit_record *record = bpf_ringbuf_reserve(&ring, sizeof(*record), 0);

	*spilled = false;
	if (!record) {
		record = bpf_ringbuf_reserve(&spill, sizeof(*record), 0);
		*spilled = true;
		count(record ? VMAUDIT_SPILLED_EVENTS : VMAUDIT_LOST_EVENTS);
	}
	return record;
}

static __always_inline void submit_plain(struct vmaudit_record *record, bool spilled)
{
	if (spilled)
		record->flags |= VMAUDIT_SPILLED;
	bpf_ringbuf_submit(record, spilled ? BPF_RB_FORCE_WAKEUP : wake_flags());
}

/* ---- files --------------------------------------------------------------------------- */

struct file_record {
	struct vmaudit_record record;
	char text[VMAUDIT_TEXT + VMAUDIT_NAME_MAX];
};

/* overlayfs maps a file of its own that leads to the one below (struct backing_file); maps shows
 * the one that the program opened since Linux 6.8 (fs/proc/task_mmu.c, file_user_inode()). */
static __always_inline bool user_path_of(struct file *file, struct path *path)
{
	struct backing_file *backing = (struct backing_file *)file;
	/* include/linux/fs.h, FMODE_BACKING: a macro, so BTF does not know it */
	__u32 bit = LINUX_KERNEL_VERSION >= KERNEL_VERSION(6, 14, 0) ? 1 << 24 : 1 << 25;

	if (!bpf_core_field_exists(struct backing_file, user_path) || !(BPF_CORE_READ(file, f_mode) & bit))
		return false;
	path->mnt = BPF_CORE_READ(backing, user_path.mnt);
	path->dentry = BPF_CORE_READ(backing, user_path.dentry);
	/* Nothing else has a dentry and a mount of one file system in that place. */
	return path->mnt && path->dentry && BPF_CORE_READ(path->mnt, mnt_sb) &&
	       BPF_CORE_READ(path->mnt, mnt_sb) == BPF_CORE_READ(path->dentry, d_sb);
}

static __always_inline struct inode *inode_of(struct file *file)
{
	struct path path;

	return user_path_of(file, &path) ? BPF_CORE_READ(path.dentry, d_inode) : BPF_CORE_READ(file, f_inode);
}

static __always_inline void set_file(struct vmaudit_record *record, struct file *file)
{
	struct inode *inode = inode_of(file);

	record->ino = BPF_CORE_READ(inode, i_ino);
	record->nlink = BPF_CORE_READ(inode, i_nlink);
	record->dev = BPF_CORE_READ(inode, i_sb, s_dev);
	record->flags |= VMAUDIT_HAS_FILE;
}

/* A walk from a file's dentry up to its namespace's root. */
struct walk {
	struct dentry *dentry;
	struct mount *mount;
	char *text;
	__u32 used;
};

/* One step: over a mount point, or over a name. A callback, so that it is verified once. */
static long step_up(__u32 index, struct walk *walk)
{
	struct dentry *dentry = walk->dentry, *parent;
	struct mount *mount = walk->mount, *mount_parent;
	long n;

	if (dentry == BPF_CORE_READ(mount, mnt.mnt_root)) {
		mount_parent = BPF_CORE_READ(mount, mnt_parent);
		if (mount_parent == mount)
			return 1;
		walk->dentry = BPF_CORE_READ(mount, mnt_mountpoint);
		walk->mount = mount_parent;
		return 0;
	}
	parent = BPF_CORE_READ(dentry, d_parent);
	if (parent == dentry || walk->used >= VMAUDIT_TEXT)
		return 1;
	n = bpf_probe_read_kernel_str(walk->text + (walk->used & (VMAUDIT_TEXT - 1)), VMAUDIT_NAME_MAX,
				      BPF_CORE_READ(dentry, d_name.name));
	if (n <= 0)
		return 1;
	walk->used += n;
	walk->dentry = parent;
	return 0;
}

/* Sends the file's path as dentry names, leaf first, across mounts up to the namespace's root. */
__noinline int send_file(__u64 address)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct file *file = (struct file *)address;
	struct file_record *out;
	struct vfsmount *mount;
	struct walk walk = {};
	struct path path;

	if (!file)
		return 0;
	out = bpf_ringbuf_reserve(&ring, sizeof(*out), 0);
	if (!out)
		return 0; /* the path can still be had from /proc/PID/maps */
	identify(&out->record, task, VMAUDIT_OP_FILE);
	set_file(&out->record, file);
	if (!user_path_of(file, &path)) {
		path.mnt = BPF_CORE_READ(file, f_path.mnt);
		path.dentry = BPF_CORE_READ(file, f_path.dentry);
	}
	mount = path.mnt;
	walk.mount = (struct mount *)((char *)mount - bpf_core_field_offset(struct mount, mnt));
	walk.dentry = path.dentry;
	walk.text = out->text;
	bpf_loop(PATH_COMPONENTS, step_up, &walk, 0);
	out->record.payload = walk.used < VMAUDIT_TEXT ? walk.used : 0;
	bpf_ringbuf_submit(out, BPF_RB_NO_WAKEUP);
	return 0;
}

/* ---- stacks -------------------------------------------------------------------------- */

struct found_vma {
	__u64 start;
	__u64 end;
	struct file *file;
};

static long remember_vma(struct task_struct *task, struct vm_area_struct *vma, struct found_vma *found)
{
	found->start = vma->vm_start;
	found->end = vma->vm_end;
	found->file = BPF_CORE_READ(vma, vm_file);
	return 0;
}

#define LOOKUPS 64

struct lookup {
	struct task_struct *task;
	__u64 at;
	struct found_vma found;
	bool done;
};

static long try_lookup(__u32 index, struct lookup *lookup)
{
	struct task_struct *task = bpf_get_current_task_btf();

	lookup->done = !bpf_find_vma(task, lookup->at, remember_vma, &lookup->found, 0);
	return lookup->done;
}

/* bpf_find_vma only tries the mmap lock: insist for some microseconds while other threads of
 * the process map and unmap. */
static __always_inline bool find_vma(struct task_struct *task, __u64 at, struct found_vma *found)
{
	struct lookup lookup = {};

	if (!bpf_find_vma(task, at, remember_vma, found, 0))
		return true;
	lookup.at = at;
	bpf_loop(LOOKUPS, try_lookup, &lookup, 0);
	*found = lookup.found;
	return lookup.done;
}

#define PLAUSIBLE_STACK (64ULL << 20)

/* Where the bytes worth copying end: the end of the stack mapping, or, nearer, where the
 * kernel put the arguments (main thread) or the thread control block lies (others). */
static __always_inline __u64 stack_end(struct task_struct *task, struct traced_thread *thread, __u64 sp)
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
	if (!find_vma(task, sp, &found)) {
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

/* What some calls leave elsewhere than in their result. */
struct extra {
	__u64 aux[2];
	__u64 ino;
	__u32 dev;
	__u32 nlink;
	__u64 flags;
	__u64 file;
	__u64 wanted; /* bytes of stack */
	__u64 mm, total_vm;
};

static __always_inline struct file *file_of(struct task_struct *task, __u32 fd)
{
	struct fdtable *table = BPF_CORE_READ(task, files, fdt);
	struct file **slots = BPF_CORE_READ(table, fd);
	struct file *file = 0;

	if (fd < BPF_CORE_READ(table, max_fds))
		bpf_probe_read_kernel(&file, sizeof(file), slots + fd);
	return file;
}

/* Looks at the mapping that a call made. Global functions are verified once, on their own. */
__noinline int look_at_mapping(__u64 at, __u32 fd, struct extra *extra)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct found_vma found = {};
	struct inode *inode;
	struct file *file;

	if (!extra)
		return 0;
	extra->flags |= VMAUDIT_HAS_AUX;
	extra->aux[0] = at;
	if (find_vma(task, at, &found)) {
		extra->aux[0] = found.start;
		extra->aux[1] = found.end;
		file = found.file;
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

static __always_inline void fill(struct vmaudit_record *record, struct task_struct *task, struct pt_regs *regs,
				 struct extra *extra, __u32 op, long ret)
{
	identify_task(record, task, op);
	record->mm = extra->mm;
	record->total_vm = extra->total_vm;
	record->ret = ret;
	ARCH_ARGS(record, regs);
	ARCH_REGS(record, regs);
	record->aux[0] = extra->aux[0];
	record->aux[1] = extra->aux[1];
	record->ino = extra->ino;
	record->dev = extra->dev;
	record->nlink = extra->nlink;
	record->flags |= extra->flags;
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

/* Reserves room for exactly one size class and copies. */
#define TRY_CLASS(bytes)                                                                            \
	if (wanted <= (bytes)) {                                                                    \
		struct {                                                                            \
			struct vmaudit_record record;                                               \
			char stack[bytes];                                                          \
		} *out = bpf_ringbuf_reserve(&ring, sizeof(*out), 0);                               \
		if (!out)                                                                           \
			return false;                                                               \
		if (bpf_probe_read_user(out->stack, wanted, (void *)sp)) {                          \
			bpf_ringbuf_discard(out, BPF_RB_NO_WAKEUP);                                 \
			extra->wanted = wanted;                                                     \
			return send_with_holes(task, regs, extra, op, ret);                         \
		}                                                                                   \
		fill(&out->record, task, regs, extra, op, ret);                                     \
		out->record.payload = wanted;                                                       \
		bpf_ringbuf_submit(out, wake_flags());                                              \
		return true;                                                                        \
	}

/* The same in pieces, with room for the last one. */
#define TRY_CLASS_WITH_HOLES(bytes)                                                                 \
	if (wanted <= (bytes)) {                                                                    \
		struct {                                                                            \
			struct vmaudit_record record;                                               \
			char stack[(bytes) + PIECE];                                                \
		} *out = bpf_ringbuf_reserve(&ring, sizeof(*out), 0);                               \
		if (!out)                                                                           \
			return false;                                                               \
		fill(&out->record, task, regs, extra, op, ret);                                     \
		pieces.to = out->stack;                                                             \
		pieces.limit = (bytes) + PIECE;                                                     \
		bpf_loop((wanted + PIECE - 1) / PIECE + 1, copy_piece, &pieces, 0);                 \
		if (pieces.holes)                                                                   \
			out->record.flags |= VMAUDIT_STACK_HOLES;                                   \
		out->record.payload = wanted;                                                       \
		bpf_ringbuf_submit(out, wake_flags());                                              \
		return true;                                                                        \
	}

/* A page that a large local variable spans but that was never touched has no frame to read, and
 * none may be faulted in here. It is zeros for the program, too; but a page may also be swapped
 * out, which cannot be told from here: the record says that there are holes. */
static __noinline bool send_with_holes(struct task_struct *task, struct pt_regs *regs, struct extra *extra,
				       __u32 op, long ret)
{
	struct pieces pieces = { .from = regs->sp };
	__u64 wanted = extra->wanted;

	TRY_CLASS_WITH_HOLES(8192)
	TRY_CLASS_WITH_HOLES(65536)
	TRY_CLASS_WITH_HOLES(262144)
	return false;
}

static __always_inline bool send_with_stack(struct task_struct *task, struct traced_thread *thread,
					    struct pt_regs *regs, struct extra *extra, __u32 op, long ret)
{
	__u64 sp = regs->sp;
	__u64 end = stack_end(task, thread, sp);
	__u64 wanted = end > sp ? end - sp : 0;

	if (!end)
		wanted = ARCH_PAGE_SIZE - (sp & (ARCH_PAGE_SIZE - 1)); /* at least this page exists */
	else if (wanted <= stack_bytes)
		extra->flags |= VMAUDIT_STACK_FULL;
	if (wanted > stack_bytes)
		wanted = stack_bytes;

	TRY_CLASS(512)
	TRY_CLASS(1024)
	TRY_CLASS(1536)
	TRY_CLASS(2048)
	TRY_CLASS(4096)
	TRY_CLASS(8192)
	TRY_CLASS(16384)
	TRY_CLASS(32768)
	TRY_CLASS(65536)
	TRY_CLASS(262144)
	return false;
}

/* ---- system calls -------------------------------------------------------------------- */

__noinline int send_name(__u64 at)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct file_record *out;
	long n;

	out = bpf_ringbuf_reserve(&ring, sizeof(*out), 0);
	if (!out)
		return 0;
	identify(&out->record, task, VMAUDIT_OP_NAME);
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
	struct extra extra = {};
	struct vmaudit_record *record;
	struct mm_struct *mm;
	struct pt_regs *regs;
	__u64 look_at = 0;
	bool spilled;
	__u32 op;

	if (!thread || id >= MAX_SYSCALL)
		return 0;
	barrier_var(id); /* or clang drops the mask that the verifier needs */
	op = op_of_syscall[id & (MAX_SYSCALL - 1)];
	if (!op)
		return 0;
	mm = task->mm;
	if (!mm)
		return 0;
	extra.mm = (__u64)mm;
	extra.total_vm = mm->total_vm;
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
		extra.aux[0] = mm->brk;
		extra.flags = VMAUDIT_HAS_AUX;
	} else if (ret >= 0 || ret < -4095) {
		if (op == VMAUDIT_OP_SHMAT)
			look_at = ret;
		else if (op == VMAUDIT_OP_IO_SETUP)
			bpf_probe_read_user(&look_at, sizeof(look_at), (void *)args.args[1]);
		else if (op == VMAUDIT_OP_MMAP && !(args.args[3] & MAP_ANONYMOUS))
			look_at = ret;
		if (look_at) {
			look_at_mapping(look_at, op == VMAUDIT_OP_MMAP ? args.args[4] : -1, &extra);
			if (op == VMAUDIT_OP_MMAP && extra.file)
				send_file(extra.file);
		}
	}
	count(VMAUDIT_SEEN);
	if (send_with_stack(task, thread, regs, &extra, op, ret))
		return 0;
	record = reserve_plain(&spilled);
	if (!record)
		return 0;
	fill(record, task, regs, &extra, op, ret);
	record->flags |= VMAUDIT_SPILLED;
	submit_plain(record, spilled);
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

/* Where tracefs cannot be had, so that the per-syscall tracepoints have no ids. Costs every
 * system call on the host more. */
SEC("tp_btf/sys_exit")
int BPF_PROG(any_syscall_exit, struct pt_regs *regs, long ret)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct pt_regs *user = (struct pt_regs *)bpf_task_pt_regs(task);

	return on_syscall_exit(ARCH_SYSCALL_NR(user), ret);
}

/* ---- the life of tasks --------------------------------------------------------------- */

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

SEC("tp_btf/sched_process_fork")
int BPF_PROG(task_forked, struct task_struct *parent, struct task_struct *child)
{
	struct traced_thread *thread = bpf_task_storage_get(&threads, parent, 0, 0);
	struct traced_thread fresh = {};
	struct vmaudit_record *record;
	struct mm_struct *mm = mm_of(parent), *child_mm = mm_of(child);
	bool is_thread, spilled, listed = false;
	struct pt_regs *regs;

	if (!thread || !mm)
		return 0;
	is_thread = parent->tgid == child->tgid;
	if (!is_thread && !follow_forks)
		return 0;
	if (!bpf_task_storage_get(&threads, child, &fresh, BPF_LOCAL_STORAGE_GET_F_CREATE))
		count(VMAUDIT_LOST_TASKS);
	/* Other threads may have changed the parent since the copy was made: then send the copy. */
	if (child_mm != mm && (list_forks || BPF_CORE_READ(mm, mm_users.counter) > 1))
		listed = send_vmas(child, false);
	count(VMAUDIT_SEEN);
	record = reserve_plain(&spilled);
	if (!record)
		return 0;
	identify(record, parent, VMAUDIT_OP_FORK);
	if (listed)
		record->flags |= VMAUDIT_LISTED;
	regs = (struct pt_regs *)bpf_task_pt_regs(child);
	record->args[0] = pid_of(child);
	record->args[1] = tid_of(child);
	record->args[2] = (__u64)child_mm;
	record->args[3] = regs->sp;
	record->args[4] = is_thread;
	record->args[5] = BPF_CORE_READ(child_mm, brk);
	__builtin_memcpy(record->comm, child->comm, VMAUDIT_COMM);
	record->ret = record->args[1];
	submit_plain(record, spilled);
	return 0;
}

SEC("tp_btf/sched_process_exec")
int BPF_PROG(task_executed, struct task_struct *task, int old_pid, struct linux_binprm *bprm)
{
	struct traced_thread *thread = bpf_task_storage_get(&threads, task, 0, 0);
	struct vmaudit_record *record;
	struct mm_struct *mm = mm_of(task);
	struct traced_thread fresh = {};
	struct file *exe;
	bool spilled, listed;

	if (!thread && entered(task)) {
		thread = bpf_task_storage_get(&threads, task, &fresh, BPF_LOCAL_STORAGE_GET_F_CREATE);
		if (!thread)
			count(VMAUDIT_LOST_TASKS);
	}
	if (!thread || !mm)
		return 0;
	thread->low = 0;
	thread->high = 0;
	listed = send_vmas(task, true);
	exe = BPF_CORE_READ(mm, exe_file);
	send_file((__u64)exe);
	count(VMAUDIT_SEEN);
	record = reserve_plain(&spilled);
	if (!record)
		return 0;
	identify(record, task, VMAUDIT_OP_EXEC);
	if (listed)
		record->flags |= VMAUDIT_LISTED;
	if (exe)
		set_file(record, exe);
	record->args[0] = BPF_CORE_READ(mm, start_brk);
	record->args[1] = BPF_CORE_READ(mm, brk);
	record->args[2] = BPF_CORE_READ(mm, start_stack);
	record->args[3] = ARCH_IS_COMPAT(task);
	record->args[4] = old_pid;
	__builtin_memcpy(record->comm, task->comm, VMAUDIT_COMM);
	record->ret = 0;
	submit_plain(record, spilled);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(task_exited, struct task_struct *task)
{
	struct traced_thread *thread = bpf_task_storage_get(&threads, task, 0, 0);
	struct vmaudit_record *record;
	struct signal_struct *signal;
	bool spilled;

	if (!thread)
		return 0;
	count(VMAUDIT_SEEN);
	record = reserve_plain(&spilled);
	if (!record)
		return 0;
	identify(record, task, VMAUDIT_OP_EXIT);
	signal = BPF_CORE_READ(task, signal);
	record->args[0] = BPF_CORE_READ(signal, flags) & SIGNAL_GROUP_EXIT ? BPF_CORE_READ(signal, group_exit_code)
									    : task->exit_code;
	record->args[1] = BPF_CORE_READ(signal, live.counter) == 0;
	record->ret = 0;
	submit_plain(record, spilled);
	return 0;
}

SEC("tp_btf/task_rename")
int BPF_PROG(task_renamed, struct task_struct *task, const char *comm)
{
	struct traced_thread *thread = bpf_task_storage_get(&threads, task, 0, 0);
	struct vmaudit_record *record;
	bool spilled;

	if (!thread)
		return 0;
	record = reserve_plain(&spilled);
	if (!record)
		return 0;
	identify(record, task, VMAUDIT_OP_RENAME);
	bpf_probe_read_kernel_str(record->comm, VMAUDIT_COMM, comm);
	record->ret = 0;
	submit_plain(record, spilled);
	return 0;
}

/* ---- processes that run already ------------------------------------------------------- */

/* One pass over all tasks: marks every thread of each process whose first thread is marked (user
 * space does that by pidfd), and tells which threads there are. A thread that is born behind the
 * pass's back of a parent not marked yet is found by the next pass. */
SEC("iter/task")
int mark_threads(struct bpf_iter__task *ctx)
{
	struct seq_file *seq = ctx->meta->seq;
	struct task_struct *task = ctx->task;
	struct traced_thread fresh = {};
	struct vmaudit_found found = {};
	struct task_struct *leader;
	struct mm_struct *mm;

	if (!task)
		return 0;
	leader = task->group_leader;
	if (!leader || !bpf_task_storage_get(&threads, leader, 0, 0))
		return 0;
	if (!bpf_task_storage_get(&threads, task, 0, 0)) {
		count(VMAUDIT_MARKED);
		if (!bpf_task_storage_get(&threads, task, &fresh, BPF_LOCAL_STORAGE_GET_F_CREATE))
			count(VMAUDIT_UNMARKABLE);
	}
	mm = mm_of(task);
	found.mm = (__u64)mm;
	found.brk = mm ? BPF_CORE_READ(mm, brk) : 0;
	found.pid = pid_of(task);
	found.tid = tid_of(task);
	__builtin_memcpy(found.comm, task->comm, VMAUDIT_COMM);
	bpf_seq_write(seq, &found, sizeof(found));
	return 0;
}
#include "touch.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";
