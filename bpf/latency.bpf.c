//go:build ignore

// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Durations of the softirqs and timers of the host, for `syncd latency`.
 */
#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* More than NR_SOFTIRQS of include/linux/interrupt.h, and a power of two. */
#define SOFTIRQS 16
#define MAX_TIMERS 1024

struct timer_list {
	void (*function)(struct timer_list *timer);
} __attribute__((preserve_access_index));

/* run_stats is of one CPU. Mirrored by syncd/latency. */
struct run_stats {
	__u64 runs;
	__u64 total;   /* ns */
	__u64 longest; /* ns */
	__u64 late;    /* runs of 1 ms and more */
};

/* By the number of the softirq. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, SOFTIRQS);
	__type(key, __u32);
	__type(value, struct run_stats);
} softirqs SEC(".maps");

/* By the address of the function. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, MAX_TIMERS);
	__type(key, __u64);
	__type(value, struct run_stats);
} timers SEC(".maps");

/* What runs on a CPU: when each softirq and the timer have begun. A timer runs in a softirq, and no
 * other one meanwhile. */
struct running {
	__u64 softirq[SOFTIRQS];
	__u64 timer;
	__u64 function;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct running);
} running SEC(".maps");

static __always_inline struct running *running_here(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&running, &zero);
}

/* count adds a run that began at began, or none if that is 0: it began before the programs were
 * attached. */
static __always_inline void count(struct run_stats *s, __u64 began)
{
	__u64 took = bpf_ktime_get_ns() - began;

	if (!s || !began)
		return;
	s->runs++;
	s->total += took;
	if (took > s->longest)
		s->longest = took;
	if (took >= 1000000)
		s->late++;
}

SEC("tp_btf/softirq_entry")
int BPF_PROG(softirq_entry, unsigned int softirq)
{
	struct running *r = running_here();

	if (r)
		r->softirq[softirq % SOFTIRQS] = bpf_ktime_get_ns();
	return 0;
}

SEC("tp_btf/softirq_exit")
int BPF_PROG(softirq_exit, unsigned int softirq)
{
	__u32 number = softirq % SOFTIRQS;
	struct running *r = running_here();
	__u64 began;

	if (!r)
		return 0;
	began = r->softirq[softirq % SOFTIRQS];
	r->softirq[softirq % SOFTIRQS] = 0;
	count(bpf_map_lookup_elem(&softirqs, &number), began);
	return 0;
}

SEC("tp_btf/timer_expire_entry")
int BPF_PROG(timer_entry, struct timer_list *timer)
{
	struct running *r = running_here();

	if (!r)
		return 0;
	r->function = (__u64)BPF_CORE_READ(timer, function);
	r->timer = bpf_ktime_get_ns();
	return 0;
}

SEC("tp_btf/timer_expire_exit")
int BPF_PROG(timer_exit)
{
	struct running *r = running_here();
	struct run_stats none = {}, *s;
	__u64 function;

	if (!r || !r->timer)
		return 0;
	function = r->function;
	s = bpf_map_lookup_elem(&timers, &function);
	if (!s) {
		bpf_map_update_elem(&timers, &function, &none, BPF_NOEXIST);
		s = bpf_map_lookup_elem(&timers, &function);
	}
	count(s, r->timer);
	r->timer = 0;
	return 0;
}
