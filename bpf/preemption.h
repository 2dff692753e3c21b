/* SPDX-License-Identifier: (GPL-2.0 OR BSD-2-Clause) */
/*
 * Hooks keep their CPU. The kernel does not run a program with fexit while the same program runs on
 * that CPU. On a preemptible kernel, another task could write meanwhile, and the hook would miss
 * that write. Kernels before 6.10 have no such functions.
 */
#ifndef MAPSYNC_PREEMPTION_H
#define MAPSYNC_PREEMPTION_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

extern void bpf_preempt_disable(void) __ksym __weak;
extern void bpf_preempt_enable(void) __ksym __weak;

static __always_inline void hold_cpu(void)
{
	if (bpf_preempt_disable)
		bpf_preempt_disable();
}

static __always_inline void release_cpu(void)
{
	if (bpf_preempt_enable)
		bpf_preempt_enable();
}

#endif
