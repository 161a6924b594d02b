/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Programs that enter a container: the processes that `docker exec` starts are no children of any
 * traced one (the engine's shim starts them), but they are moved into the container's cgroup before
 * they execute the requested program.
 */
#ifndef VMAUDIT_CGROUP_H
#define VMAUDIT_CGROUP_H

#include "vmaudit.h"
#include "vmaudit_core.h"

#define CGROUP_DEPTH 24

/* set by user space before loading: enum vmaudit_hierarchy. As long as it is NONE, the verifier
 * removes all of this. */
const volatile __u32 entered_hierarchy = VMAUDIT_CGROUP_NONE;

/* Only what is put there from outside, not what the container's own processes start. */
const volatile bool entered_from_outside = false;

/* Inode numbers of the cgroups' directories; those below them count, too. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, VMAUDIT_CGROUPS);
	__type(key, __u64);
	__type(value, __u8);
} entered_cgroups SEC(".maps");

#define CONTROLLER(which, id)                                                                       \
	if (entered_hierarchy == (which) && bpf_core_enum_value_exists(enum cgroup_subsys_id, id)) \
		number = bpf_core_enum_value(enum cgroup_subsys_id, id);

/* The task's cgroup in the requested hierarchy; 0 where it has none. */
static __always_inline struct cgroup *cgroup_of(struct task_struct *task)
{
	struct css_set *set = BPF_CORE_READ(task, cgroups);
	struct cgroup_subsys_state *css = 0;
	long number = -1;

	if (entered_hierarchy == VMAUDIT_CGROUP_V2)
		return BPF_CORE_READ(set, dfl_cgrp);
	CONTROLLER(VMAUDIT_CGROUP_PIDS, pids_cgrp_id)
	CONTROLLER(VMAUDIT_CGROUP_MEMORY, memory_cgrp_id)
	CONTROLLER(VMAUDIT_CGROUP_CPU, cpu_cgrp_id)
	CONTROLLER(VMAUDIT_CGROUP_CPUSET, cpuset_cgrp_id)
	CONTROLLER(VMAUDIT_CGROUP_CPUACCT, cpuacct_cgrp_id)
	CONTROLLER(VMAUDIT_CGROUP_DEVICES, devices_cgrp_id)
	CONTROLLER(VMAUDIT_CGROUP_FREEZER, freezer_cgrp_id)
	CONTROLLER(VMAUDIT_CGROUP_BLKIO, io_cgrp_id)
	if (number < 0)
		return 0;
	bpf_probe_read_kernel(&css, sizeof(css),
			      (char *)set + bpf_core_field_offset(struct css_set, subsys) + number * sizeof(css));
	return BPF_CORE_READ(css, cgroup);
}

/* True for a task in one of the requested cgroups, or below it. */
static __always_inline bool is_inside(struct task_struct *task)
{
	struct cgroup *group = cgroup_of(task);
	__u64 id;
	int i;

	for (i = 0; i < CGROUP_DEPTH && group; i++) {
		id = BPF_CORE_READ(group, kn, id);
		if (bpf_map_lookup_elem(&entered_cgroups, &id))
			return true;
		group = BPF_CORE_READ(group, self.parent, cgroup);
	}
	return false;
}

/* True for a task that has to be traced because of where it is. */
static __always_inline bool entered(struct task_struct *task)
{
	struct task_struct *parent;

	if (entered_hierarchy == VMAUDIT_CGROUP_NONE || !is_inside(task))
		return false;
	if (!entered_from_outside)
		return true;
	parent = BPF_CORE_READ(task, real_parent);
	/* An engine's helper may be in the cgroup already, but not in the PID namespace: setns(2)
	 * moves only children there. */
	return BPF_CORE_READ(parent, thread_pid, level) < BPF_CORE_READ(task, thread_pid, level) ||
	       !is_inside(parent);
}

#endif
