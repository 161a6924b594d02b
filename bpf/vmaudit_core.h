/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The few kernel types that vmaudit reads, with the fields it reads. Offsets are relocated to
 * the running kernel's at load time (CO-RE), so order and completeness do not matter here.
 */
#ifndef VMAUDIT_CORE_H
#define VMAUDIT_CORE_H

#include <linux/types.h>
#include <linux/bpf.h>

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

typedef struct {
	int counter;
} atomic_t;

struct qstr {
	union {
		struct {
			__u32 hash;
			__u32 len;
		};
		__u64 hash_len;
	};
	const unsigned char *name;
};

struct super_block {
	__u32 s_dev;
};

struct inode {
	struct super_block *i_sb;
	unsigned long i_ino;
	const unsigned int i_nlink;
};

struct dentry {
	struct dentry *d_parent;
	struct qstr d_name;
	struct inode *d_inode;
	struct super_block *d_sb;
};

struct vfsmount {
	struct dentry *mnt_root;
	struct super_block *mnt_sb;
};

struct mount {
	struct mount *mnt_parent;
	struct dentry *mnt_mountpoint;
	struct vfsmount mnt;
};

struct path {
	struct vfsmount *mnt;
	struct dentry *dentry;
};

struct file {
	unsigned int f_mode;
	struct inode *f_inode;
	struct path f_path;
};

/* fs/file_table.c */
struct backing_file {
	struct file file;
	struct path user_path;
};

struct kernfs_node {
	__u64 id;
};

struct cgroup;

struct cgroup_subsys_state {
	struct cgroup *cgroup;
	struct cgroup_subsys_state *parent;
};

struct cgroup {
	struct cgroup_subsys_state self;
	struct kernfs_node *kn;
};

struct css_set {
	struct cgroup_subsys_state *subsys[1]; /* as many as the kernel has controllers */
	struct cgroup *dfl_cgrp;
};

typedef struct {
	void *vdso;
} mm_context_t;

/* kernel/events/uprobes.c */
struct xol_area {
	unsigned long vaddr;
};

/* include/linux/uprobes.h */
struct return_instance {
	unsigned long stack; /* where the return address is */
	unsigned long orig_ret_vaddr;
	struct return_instance *next;
};

struct uprobe_task {
	struct return_instance *return_instances;
};

struct uprobes_state {
	struct xol_area *xol_area;
};

struct mm_struct {
	atomic_t mm_users;
	int map_count;
	unsigned long total_vm;
	unsigned long start_code, start_data;
	unsigned long start_brk, brk, start_stack;
	struct file *exe_file;
	mm_context_t context;
	struct uprobes_state uprobes_state;
};

struct vm_area_struct {
	unsigned long vm_start;
	unsigned long vm_end;
	unsigned long vm_flags;
	unsigned long vm_pgoff;
	struct file *vm_file;
};

struct signal_struct {
	atomic_t live;
	unsigned int flags;
	int group_exit_code;
};

#include "arch.h"

struct fdtable {
	unsigned int max_fds;
	struct file **fd;
};

struct files_struct {
	struct fdtable *fdt;
};

struct ns_common {
	unsigned int inum;
};

struct pid_namespace {
	struct ns_common ns;
};

struct upid {
	int nr;
	struct pid_namespace *ns;
};

struct pid {
	unsigned int level;
	struct upid numbers[];
};

struct task_struct {
	int pid;
	int tgid;
	int exit_code;
	unsigned int flags;
	struct mm_struct *mm;
	struct task_struct *group_leader;
	struct task_struct *real_parent;
	struct pid *thread_pid;
	struct signal_struct *signal;
	struct files_struct *files;
	struct css_set *cgroups;
	char comm[16];
	int pagefault_disabled;
	struct uprobe_task *utask;
	struct completion *vfork_done;
	struct thread_struct thread;
};

struct trace_event_raw_sys_exit {
	long id;
	long ret;
};

struct linux_binprm;
struct seq_file;

/* include/linux/bpf.h, kernel/bpf/task_iter.c */
struct bpf_iter_meta {
	union {
		struct seq_file *seq;
	};
};

struct bpf_iter__task {
	union {
		struct bpf_iter_meta *meta;
	};
	union {
		struct task_struct *task;
	};
};

#pragma clang attribute pop

/* include/linux/cgroup_subsys.h: which of them there are, and their numbers, is the kernel's */
enum cgroup_subsys_id {
	pids_cgrp_id,
	memory_cgrp_id,
	cpu_cgrp_id,
	cpuset_cgrp_id,
	cpuacct_cgrp_id,
	devices_cgrp_id,
	freezer_cgrp_id,
	io_cgrp_id,
};

/* kernel/bpf/task_iter.c: an opaque iterator on the caller's stack */
struct bpf_iter_task_vma {
	__u64 opaque[1];
} __attribute__((aligned(8)));

/* They need the types above, and every header here needs them. */
#include <stdbool.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#endif
