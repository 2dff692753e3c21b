//go:build ignore

// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Data planes for tests that the kernel calls: a timer makes a list of writes in a soft interrupt,
 * an iterator and a kprobe in process context. The loader shares the list with dataplane.bpf.c.
 */
#include "writes.h"

struct timer_value {
	struct bpf_timer timer;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct timer_value);
} timers SEC(".maps");

static int by_timer(void *map, __u32 *key, struct timer_value *value)
{
	return make_run();
}

/* start_timer makes a timer expire after the system call that runs it, during which a kprobe of
 * bpf(2) may run on this CPU. It returns 0, or an error as unsigned number. */
SEC("socket")
int start_timer(struct __sk_buff *skb)
{
	__u32 zero = 0;
	struct timer_value *v = bpf_map_lookup_elem(&timers, &zero);
	long err;

	if (!v)
		return -1;
	err = bpf_timer_init(&v->timer, &timers, 1 /* CLOCK_MONOTONIC */);
	if (!err)
		err = bpf_timer_set_callback(&v->timer, by_timer);
	if (!err)
		err = bpf_timer_start(&v->timer, 2000000, 0);
	return err;
}

struct bpf_iter__bpf_map_elem {
	void *key;
} __attribute__((preserve_access_index));

/* by_iterator makes a run of the list for each element of the map that it iterates over. */
SEC("iter/bpf_map_elem")
int by_iterator(struct bpf_iter__bpf_map_elem *ctx)
{
	return ctx->key ? make_run() : 0;
}

SEC("kprobe")
int by_kprobe(void *ctx)
{
	return make_run();
}
