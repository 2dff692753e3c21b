/* SPDX-License-Identifier: (GPL-2.0 OR BSD-2-Clause) */
/*
 * What differs between x86-64 and arm64: the preempt count, the registers of a system call, and the
 * stack of a return probe. BTF contains neither macros nor calling conventions, so these are
 * constants here.
 */
#ifndef MAPSYNC_ARCH_H
#define MAPSYNC_ARCH_H

#include "event.h"

#include <bpf/bpf_core_read.h>

struct bpf_map {
	enum bpf_map_type map_type;
	__u32 id;
} __attribute__((preserve_access_index));

/* Soft interrupt being served, hard interrupt, NMI. Bottom halves that are only disabled count in
 * 0x200 and are outside this mask. */
#define IN_INTERRUPT (0x100 | 0xf0000 | 0xf00000)

/* Untyped, because cilium/ebpf resolves no ksyms with a type. bpf_this_cpu_ptr accepts only those,
 * so this_cpu_address adds the CPU's offset itself. */
extern void __per_cpu_offset __ksym;
extern void bpf_prog_active __ksym;

static __always_inline __u64 this_cpu_address(const void *variable)
{
	__u64 offset = 0;

	bpf_probe_read_kernel(&offset, sizeof(offset),
			      &__per_cpu_offset + bpf_get_smp_processor_id() * sizeof(offset));
	return offset + (__u64)variable;
}

#if defined(__TARGET_ARCH_arm64)

/* A call pushes no return address. */
#define RETURN_ADDRESS_BYTES 0

#define NR_BPF 280
#define NR_BPF_COMPAT 386
#define TIF_32BIT (1 << 22) /* in thread_info.flags: the task runs a 32-bit program */

/* Declared here, because the headers of the build machine may be those of x86-64. */
struct user_pt_regs {
	__u64 regs[31];
	__u64 sp;
	__u64 pc;
	__u64 pstate;
};

struct thread_info {
	unsigned long flags;
	__u64 preempt_count;
} __attribute__((preserve_access_index));

struct task_struct {
	struct thread_info thread_info;
	struct task_struct *group_leader;
	struct files_struct *files;
	struct bpf_run_ctx *bpf_ctx;
} __attribute__((preserve_access_index));

struct pt_regs___kernel {
	__u64 regs[31];
	__u64 orig_x0;
	__s32 syscallno;
} __attribute__((preserve_access_index));

static __always_inline __u32 preempt_count(struct slot *s)
{
	struct task_struct *task = (void *)bpf_get_current_task();

	return BPF_CORE_READ(task, thread_info.preempt_count);
}

/* in_compat_call returns true if a task is in a 32-bit system call. */
static __always_inline bool in_compat_call(struct task_struct *task)
{
	return BPF_CORE_READ(task, thread_info.flags) & TIF_32BIT;
}

/* The number of the system call, for a program whose verifier tracks the type of regs. */
#define DIRECT_CALL_NUMBER(regs) ((regs)->syscallno)

/* call_number returns the number of the system call. */
static __always_inline __u32 call_number(struct pt_regs___kernel *regs)
{
	return BPF_CORE_READ(regs, syscallno);
}

/* call_argument returns the first or the second argument. The result of the call has replaced the
 * first register. */
static __always_inline __u64 call_argument(struct pt_regs___kernel *regs, int i, bool compat)
{
	__u64 value = i ? BPF_CORE_READ(regs, regs[1]) : BPF_CORE_READ(regs, orig_x0);

	return compat ? value & 0xffffffff : value;
}

/* task_registers returns the registers with which the current task has entered the kernel. */
static __always_inline struct pt_regs___kernel *task_registers(void)
{
	return (void *)bpf_task_pt_regs(bpf_get_current_task_btf());
}

#else

/* A call pushes its return address, which the return instruction pops. */
#define RETURN_ADDRESS_BYTES 8

#define NR_BPF 321
#define NR_BPF_COMPAT 357
#define X32_SYSCALL_BIT 0x40000000
#define TS_COMPAT 2 /* in thread_info.status: the task is in a 32-bit system call */

/* The size of a kernel stack without KASAN. */
#define THREAD_SIZE 16384

struct thread_info {
	__u32 status;
} __attribute__((preserve_access_index));

struct task_struct {
	struct thread_info thread_info;
	void *stack;
	struct task_struct *group_leader;
	struct files_struct *files;
	struct bpf_run_ctx *bpf_ctx;
} __attribute__((preserve_access_index));

/* The preempt count of kernels 6.2 to 6.14. Others have the variable __preempt_count. */
struct pcpu_hot {
	int preempt_count;
} __attribute__((preserve_access_index));

extern void __preempt_count __ksym __weak;
extern void pcpu_hot __ksym __weak;

/* Register names of the kernel, which differ from those in its user-space headers. */
struct pt_regs___kernel {
	unsigned long bx;
	unsigned long cx;
	unsigned long si;
	unsigned long di;
	unsigned long orig_ax;
} __attribute__((preserve_access_index));

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

/* in_compat_call returns true if a task is in a 32-bit system call. */
static __always_inline bool in_compat_call(struct task_struct *task)
{
	return BPF_CORE_READ(task, thread_info.status) & TS_COMPAT;
}

/* The number of the system call, for a program whose verifier tracks the type of regs. x32 has the
 * numbers of x86-64 and one more bit. */
#define DIRECT_CALL_NUMBER(regs) ((regs)->orig_ax & ~X32_SYSCALL_BIT)

/* call_number returns the number of the system call. */
static __always_inline __u32 call_number(struct pt_regs___kernel *regs)
{
	return BPF_CORE_READ(regs, orig_ax) & ~X32_SYSCALL_BIT;
}

/* call_argument returns the first or the second argument. */
static __always_inline __u64 call_argument(struct pt_regs___kernel *regs, int i, bool compat)
{
	if (compat)
		return (__u32)(i ? BPF_CORE_READ(regs, cx) : BPF_CORE_READ(regs, bx));
	return i ? BPF_CORE_READ(regs, si) : BPF_CORE_READ(regs, di);
}

/* task_registers returns the registers with which the current task has entered the kernel. Kernels
 * before 5.15 have no helper for them. There they are at the end of the stack. */
static __always_inline struct pt_regs___kernel *task_registers(void)
{
	struct task_struct *task = (void *)bpf_get_current_task();

	if (bpf_core_enum_value_exists(enum bpf_func_id, BPF_FUNC_task_pt_regs))
		return (void *)bpf_task_pt_regs(bpf_get_current_task_btf());
	return BPF_CORE_READ(task, stack) + THREAD_SIZE -
	       bpf_core_type_size(struct pt_regs___kernel);
}

#endif

/* in_bpf_call returns true if a task is in the system call bpf(2). regs are the registers with
 * which it has entered the kernel. */
static __always_inline bool in_bpf_call(struct pt_regs___kernel *regs, bool compat)
{
	return call_number(regs) == (compat ? NR_BPF_COMPAT : NR_BPF);
}

/* The kernel functions that return bool set only the lowest byte of the register. The barrier makes
 * clang load all 8 bytes of an argument, because kernels refuse a shorter load from the context. */
static __always_inline bool returned_true(__u64 result)
{
	barrier_var(result);
	return result & 0xff;
}

#endif
