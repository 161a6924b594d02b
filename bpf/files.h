/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Files that are mapped: which they are, and the path under which the program opened them.
 */
#ifndef VMAUDIT_FILES_H
#define VMAUDIT_FILES_H

#include "record.h"
#include "rings.h"

#define PATH_COMPONENTS 64

extern int LINUX_KERNEL_VERSION __kconfig;

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

/* `number`: of its path (send_file()), or 0. */
static __always_inline void set_file(struct vmaudit_record *record, struct file *file, __u64 number)
{
	struct inode *inode = inode_of(file);

	record->ino = BPF_CORE_READ(inode, i_ino);
	record->nlink = BPF_CORE_READ(inode, i_nlink);
	record->dev = BPF_CORE_READ(inode, i_sb, s_dev);
	record->flags |= VMAUDIT_HAS_FILE;
	if (number) {
		record->aux[0] = number;
		record->flags |= VMAUDIT_FILE_NUMBERED;
	}
}

/* The numbers of the paths that were sent. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, __u64);
	__type(value, __u8);
} sent_paths SEC(".maps");

/* A walk from a file's dentry up to its namespace's root. */
struct walk {
	struct dentry *dentry;
	struct mount *mount;
	char *text;
	__u32 used;
	__u64 number;
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
	/* What is in no folder has its name all the same (memfd:NAME; d_alloc_pseudo, fs/dcache.c). */
	if (walk->used >= VMAUDIT_TEXT || (parent == dentry && walk->used))
		return 1;
	n = bpf_probe_read_kernel_str(walk->text + (walk->used & (VMAUDIT_TEXT - 1)), VMAUDIT_NAME_MAX,
				      BPF_CORE_READ(dentry, d_name.name));
	if (n <= 0)
		return 1;
	walk->used += n;
	walk->dentry = parent;
	return parent == dentry;
}

/* The same for the path's number: of all dentries on the way, and of the hashes of their names, which are
 * other ones when a file or folder is renamed or a dentry's memory is used again. */
static long number_step(__u32 index, struct walk *walk)
{
	struct dentry *dentry = walk->dentry, *parent;
	struct mount *mount = walk->mount, *mount_parent;

	if (dentry == BPF_CORE_READ(mount, mnt.mnt_root)) {
		mount_parent = BPF_CORE_READ(mount, mnt_parent);
		if (mount_parent == mount)
			return 1;
		walk->dentry = BPF_CORE_READ(mount, mnt_mountpoint);
		walk->mount = mount_parent;
		return 0;
	}
	parent = BPF_CORE_READ(dentry, d_parent);
	walk->number = (walk->number ^ (__u64)dentry) * 0x9e3779b97f4a7c15ULL;
	walk->number = (walk->number ^ BPF_CORE_READ(dentry, d_name.hash_len)) * 0x9e3779b97f4a7c15ULL;
	walk->number ^= walk->number >> 29;
	walk->dentry = parent;
	return parent == dentry;
}

static __always_inline void begin_walk(struct walk *walk, struct path *path)
{
	walk->mount = (struct mount *)((char *)path->mnt - bpf_core_field_offset(struct mount, mnt));
	walk->dentry = path->dentry;
}

/* Sends the file's path as dentry names, leaf first, across mounts up to the namespace's root, where it was
 * not sent before. Leaves its number in the thread's `file`; 0: the ring is full, and the path can still be
 * had from /proc/PID/maps. */
__noinline int send_file(__u64 address)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct traced_thread *thread = bpf_task_storage_get(&threads, task, 0, 0);
	struct file *file = (struct file *)address;
	struct file_record *out;
	struct walk walk = {};
	struct path path;
	__u64 number;
	__u8 yes = 1;

	if (!thread)
		return 0;
	thread->file = 0;
	if (!file)
		return 0;
	if (!user_path_of(file, &path)) {
		path.mnt = BPF_CORE_READ(file, f_path.mnt);
		path.dentry = BPF_CORE_READ(file, f_path.dentry);
	}
	begin_walk(&walk, &path);
	/* Names of files that are in no folder are not hashed. */
	walk.number = BPF_CORE_READ(file, f_inode, i_ino);
	bpf_loop(PATH_COMPONENTS, number_step, &walk, 0);
	number = walk.number | 1; /* not 0, which is none */
	if (bpf_map_lookup_elem(&sent_paths, &number)) {
		thread->file = number;
		return 0;
	}
	out = bpf_ringbuf_reserve(&ring, sizeof(*out), 0);
	if (!out)
		return 0;
	identify(&out->record, task, thread, VMAUDIT_OP_FILE);
	set_file(&out->record, file, number);
	begin_walk(&walk, &path);
	walk.text = out->text;
	bpf_loop(PATH_COMPONENTS, step_up, &walk, 0);
	out->record.payload = walk.used < VMAUDIT_TEXT ? walk.used : 0;
	bpf_ringbuf_submit(out, BPF_RB_NO_WAKEUP);
	bpf_map_update_elem(&sent_paths, &number, &yes, BPF_ANY);
	thread->file = number;
	wake_soon(); /* what is in it may change what is to be recorded (interpreters.h) */
	return 0;
}

static __always_inline struct file *file_of(struct task_struct *task, __u32 fd)
{
	struct fdtable *table = BPF_CORE_READ(task, files, fdt);
	struct file **slots = BPF_CORE_READ(table, fd);
	struct file *file = 0;

	if (fd < BPF_CORE_READ(table, max_fds))
		bpf_probe_read_kernel(&file, sizeof(file), slots + fd);
	return file;
}

#endif
