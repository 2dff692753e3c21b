/* SPDX-License-Identifier: (GPL-2.0 OR BSD-2-Clause) */
/*
 * The mark of syncd's own writes, shared by the writing programs and the hooks.
 */
#ifndef MAPSYNC_OWN_WRITE_MARKS_H
#define MAPSYNC_OWN_WRITE_MARKS_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

/* own_mark is the mark of one CPU. */
struct own_mark {
	__u64 task; /* task whose write is in progress on this CPU, 0: none */
	__u64 runs; /* writing programs that hold the mark or try to */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct own_mark);
} own_write_marks SEC(".maps");

/* take_own_mark reports whether the caller may write with the mark of its CPU. The caller calls
 * release_own_mark in either case. Before 6.12, a test run can be preempted. Another syncd thread
 * may then be in the middle of its own run on this CPU, and its mark must stay valid. A check of
 * the task followed by a store would be racy, because a preemption can occur between the two. */
static __always_inline bool take_own_mark(volatile struct own_mark *own)
{
	__sync_fetch_and_add(&own->runs, 1);
	return own->runs == 1;
}

static __always_inline void release_own_mark(volatile struct own_mark *own)
{
	__sync_fetch_and_add(&own->runs, -1);
}

#endif
