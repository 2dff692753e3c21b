/* SPDX-License-Identifier: (GPL-2.0 OR BSD-2-Clause) */
/*
 * Detection of the writer of an entry. The preempt count shows whether an interrupt writes. A mark
 * shows syncd's writing program. A bpf(2) write runs while bpf_prog_active is raised, in a task
 * that is inside such a system call. docs/capture.md has the table.
 */
#ifndef MAPSYNC_WRITE_CONTEXT_H
#define MAPSYNC_WRITE_CONTEXT_H

#include "event.h"
#include "own_write_marks.h"

#include "arch.h"

/* syncd's process, whose bpf(2) writes are own writes too. It is identified by its group leader
 * task. A process ID would depend on the PID namespace of the reader. */
__u64 own_process = 0;

static __always_inline __u64 current_process(void)
{
	return (__u64)BPF_CORE_READ((struct task_struct *)bpf_get_current_task(), group_leader);
}

static __always_inline bool in_interrupt(struct slot *s)
{
	return preempt_count(s) & IN_INTERRUPT;
}

/* own_write returns true if syncd's writing program makes the write that the current hook reports.
 * It is also true for a write of an interrupt in between: the callers check in_interrupt. */
static __always_inline bool own_write(void)
{
	__u32 zero = 0;
	struct own_mark *mark = bpf_map_lookup_elem(&own_write_marks, &zero);

	return mark && mark->task && mark->task == bpf_get_current_task();
}

static __always_inline bool writes_a_map(__u32 command)
{
	switch (command) {
	case BPF_MAP_UPDATE_ELEM:
	case BPF_MAP_DELETE_ELEM:
	case BPF_MAP_LOOKUP_AND_DELETE_ELEM:
	case BPF_MAP_LOOKUP_AND_DELETE_BATCH:
	case BPF_MAP_UPDATE_BATCH:
	case BPF_MAP_DELETE_BATCH:
		return true;
	}
	return false;
}

/* in_bpf_write returns true if the current task is inside a bpf(2) call that writes.
 * bpf_prog_active alone is not sufficient: it belongs to a CPU, and on a preemptible kernel the
 * current task may have preempted the task that raised it. Kernels before 5.15 have no helper for
 * the registers, and the loader removes the code. The result is then always true. */
static __always_inline bool in_bpf_write(void)
{
	struct pt_regs___kernel *regs;
	bool compat;

	if (!bpf_core_enum_value_exists(enum bpf_func_id, BPF_FUNC_task_pt_regs))
		return true;
	regs = task_registers();
	compat = in_compat_call((void *)bpf_get_current_task());
	return in_bpf_call(regs, compat) && writes_a_map(call_argument(regs, 0, compat));
}

struct task_struct___start {
	__u64 start_boottime;
} __attribute__((preserve_access_index));

/* set_caller sets c to the current process. */
static __always_inline void set_caller(struct caller *c)
{
	struct task_struct___start *leader = (void *)current_process();
	__u64 age;

	c->process = bpf_get_current_pid_tgid() >> 32;
	c->start = BPF_CORE_READ(leader, start_boottime);
	age = (bpf_ktime_get_boot_ns() - c->start) / 1000000;
	c->age_ms = age < 0xffffffff ? age : 0xffffffff;
}

/* The programs that run in a task are in a chain, of which task_struct has the last one. */
struct bpf_run_ctx {
} __attribute__((preserve_access_index));

/* The link of a program that is attached by fentry or fexit, which begins with a bpf_run_ctx. */
struct bpf_tramp_run_ctx {
	struct bpf_run_ctx *saved_run_ctx; /* the program that it interrupts, NULL: none */
} __attribute__((preserve_access_index));

/* in_other_program returns true if the current hook runs for another program. A program under a
 * kprobe or tracepoint raises bpf_prog_active, and may run inside a bpf(2) call that writes. Before
 * 5.19 the kernel does not link hooks, and the result is false. */
static __always_inline bool in_other_program(void)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	struct bpf_tramp_run_ctx *hook;

	if (!bpf_core_field_exists(struct bpf_tramp_run_ctx, saved_run_ctx))
		return false;
	hook = (void *)BPF_CORE_READ(task, bpf_ctx);
	return BPF_CORE_READ(hook, saved_run_ctx);
}

/* context_of returns the context of the write that the current hook reports. A kprobe never runs
 * for a bpf(2) write, and raises bpf_prog_active itself. */
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
	if (!active || !in_bpf_write() || in_other_program())
		return CTX_PROCESS;
	return current_process() == own_process ? CTX_OWN : CTX_SYSCALL;
}

#endif
