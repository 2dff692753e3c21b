/* SPDX-License-Identifier: (GPL-2.0 OR BSD-2-Clause) */
/*
 * Who writes? The preempt count tells an interrupt from a task, a flag that the
 * daemon's writing program raises tells its own writes, and bpf_prog_active
 * tells a bpf(2) call. docs/capture.md has the table.
 */
#ifndef MAPSYNC_CONTEXT_H
#define MAPSYNC_CONTEXT_H

#include "event.h"

#include <bpf/bpf_core_read.h>

struct task_struct {
	struct task_struct *group_leader;
} __attribute__((preserve_access_index));

/* Soft interrupt being served, hard interrupt, NMI. Bottom halves that are
 * merely switched off count in 0x200 and are none of these. */
#define IN_INTERRUPT (0x100 | 0xf0000 | 0xf00000)

/* Bytes before preempt_count in struct pcpu_hot (kernels 6.2 to 6.14). */
#define PCPU_HOT_PREEMPT_COUNT 8

extern void __per_cpu_offset __ksym;
extern void bpf_prog_active __ksym;
extern void __preempt_count __ksym __weak;
extern void pcpu_hot __ksym __weak;

/* The daemon's process, whose bpf(2) writes are its own too. Told by its leading
 * task: a process number would depend on the pid namespace that one asks in. */
__u64 own_process = 0;

/* The task whose write, by the daemon's own program, is under way here. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} own_writer SEC(".maps");

static __always_inline __u64 this_cpu_address(const void *variable)
{
	__u64 offset = 0;

	bpf_probe_read_kernel(&offset, sizeof(offset),
			      &__per_cpu_offset + bpf_get_smp_processor_id() * 8);
	return offset + (__u64)variable;
}

static __always_inline __u32 preempt_count(struct slot *s)
{
	__u32 count = 0;

	if (!s->preempt_count) {
		if (&pcpu_hot)
			s->preempt_count = this_cpu_address(&pcpu_hot) + PCPU_HOT_PREEMPT_COUNT;
		else
			s->preempt_count = this_cpu_address(&__preempt_count);
	}
	bpf_probe_read_kernel(&count, sizeof(count), (void *)s->preempt_count);
	return count;
}

static __always_inline __u64 current_process(void)
{
	return (__u64)BPF_CORE_READ((struct task_struct *)bpf_get_current_task(), group_leader);
}

static __always_inline bool in_interrupt(struct slot *s)
{
	return preempt_count(s) & IN_INTERRUPT;
}

/* own_write tells whether the daemon's program makes the write that the current
 * hook sees, unless an interrupt makes it. */
static __always_inline bool own_write(void)
{
	__u32 zero = 0;
	__u64 *writer = bpf_map_lookup_elem(&own_writer, &zero);

	return writer && *writer && *writer == bpf_get_current_task();
}

/* context_of tells who makes the write that the current hook sees. A kprobe
 * never runs for a bpf(2) write, and raises bpf_prog_active itself. */
static __always_inline enum context context_of(struct slot *s, bool kprobe)
{
	__u32 active = 0;

	if (in_interrupt(s))
		return CTX_PACKET;
	if (own_write())
		return CTX_OWN;
	if (kprobe)
		return CTX_PROCESS;
	bpf_probe_read_kernel(&active, sizeof(active), (void *)this_cpu_address(&bpf_prog_active));
	if (!active)
		return CTX_PROCESS;
	return current_process() == own_process ? CTX_OWN : CTX_SYSCALL;
}

#endif
