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

#include <bpf/bpf_core_read.h>

struct thread_info {
	__u32 status;
} __attribute__((preserve_access_index));

struct task_struct {
	struct thread_info thread_info;
	void *stack;
	struct task_struct *group_leader;
	struct files_struct *files;
} __attribute__((preserve_access_index));

/* The preempt count of kernels 6.2 to 6.14. Others have the variable __preempt_count. */
struct pcpu_hot {
	int preempt_count;
} __attribute__((preserve_access_index));

/* Register names of the kernel, which differ from those in its user-space headers. */
struct pt_regs___kernel {
	unsigned long bx;
	unsigned long cx;
	unsigned long dx;
	unsigned long si;
	unsigned long di;
	unsigned long orig_ax;
} __attribute__((preserve_access_index));

/* The numbers of bpf(2) in the three system call interfaces of x86-64, and masks. BTF contains no
 * macros, so these are constants. */
#define NR_BPF 321
#define NR_BPF_COMPAT 357
#define X32_SYSCALL_BIT 0x40000000
#define TS_COMPAT 2 /* in thread_info.status: the task is in a 32-bit system call */

/* Soft interrupt being served, hard interrupt, NMI. Bottom halves that are only disabled count in
 * 0x200 and are outside this mask. The values are macros, which BTF does not contain. */
#define IN_INTERRUPT (0x100 | 0xf0000 | 0xf00000)

/* Untyped, because cilium/ebpf resolves no ksyms with a type. bpf_this_cpu_ptr accepts only those,
 * so this_cpu_address adds the CPU's offset itself. */
extern void __per_cpu_offset __ksym;
extern void bpf_prog_active __ksym;
extern void __preempt_count __ksym __weak;
extern void pcpu_hot __ksym __weak;

/* syncd's process, whose bpf(2) writes are own writes too. It is identified by its group leader
 * task. A process ID would depend on the PID namespace of the reader. */
__u64 own_process = 0;

static __always_inline __u64 this_cpu_address(const void *variable)
{
	__u64 offset = 0;

	bpf_probe_read_kernel(&offset, sizeof(offset),
			      &__per_cpu_offset + bpf_get_smp_processor_id() * sizeof(offset));
	return offset + (__u64)variable;
}

static __always_inline __u32 preempt_count(struct slot *s)
{
	__u32 count = 0;

	if (!s->preempt_count) {
		/* If the symbol is absent, the verifier removes this branch and its relocation,
		 * which fails without the struct. */
		if (&pcpu_hot)
			s->preempt_count = this_cpu_address(&pcpu_hot) +
					   bpf_core_field_offset(struct pcpu_hot, preempt_count);
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

/* in_compat_call returns true if a task is in a 32-bit system call. */
static __always_inline bool in_compat_call(struct task_struct *task)
{
	return BPF_CORE_READ(task, thread_info.status) & TS_COMPAT;
}

/* bpf_command sets command to the first argument of bpf(2). It returns false if the task is in
 * another system call. regs are the registers with which it entered the kernel. */
static __always_inline bool bpf_command(struct task_struct *task, struct pt_regs___kernel *regs,
					__u32 *command)
{
	__u64 number = BPF_CORE_READ(regs, orig_ax);

	if (in_compat_call(task)) {
		*command = BPF_CORE_READ(regs, bx);
		return number == NR_BPF_COMPAT;
	}
	*command = BPF_CORE_READ(regs, di);
	return (number & ~X32_SYSCALL_BIT) == NR_BPF;
}

/* in_bpf_write returns true if the current task is inside a bpf(2) call that writes.
 * bpf_prog_active alone is not sufficient: it belongs to a CPU, and on a preemptible kernel the
 * current task may have preempted the task that raised it. Kernels before 5.15 have no helper for
 * the registers, and the loader removes the code. The result is then always true. */
static __always_inline bool in_bpf_write(void)
{
	struct task_struct *task;
	__u32 command;

	if (!bpf_core_enum_value_exists(enum bpf_func_id, BPF_FUNC_task_pt_regs))
		return true;
	task = bpf_get_current_task_btf();
	return bpf_command(task, (void *)bpf_task_pt_regs(task), &command) && writes_a_map(command);
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
	if (!active || !in_bpf_write())
		return CTX_PROCESS;
	return current_process() == own_process ? CTX_OWN : CTX_SYSCALL;
}

#endif
