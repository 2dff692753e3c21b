//go:build ignore

// SPDX-License-Identifier: (GPL-2.0 OR BSD-2-Clause)
/*
 * How the daemon reads and writes a watched map without bpf(2), whose traffic
 * would hide the data plane's writes from the hooks.
 *
 * One instance is loaded for each map. Entries come and go in arrays that user
 * space maps into its memory; the sizes are constants known to the verifier.
 */
#include <linux/bpf.h>
#include <linux/errno.h>
#include <stdbool.h>
#include <stddef.h>

#include "own_writer.h"

/* Entries handled in one test run. With more, a packet waits longer for the
 * bottom halves that the run keeps off; with fewer, the run itself costs. */
#define RUN_ENTRIES 16

#define ALIGN8(n) (((n) + 7) & ~7U)

/* Parts of a value that an update may leave as they are. */
#define KEEP_RANGES 512

enum op {
	OP_NONE, /* nothing (left) to do */
	OP_UPDATE,
	OP_DELETE,
};

/* An entry is this head, the key padded to 8 bytes, and the value. */
struct entry {
	__u32 op;
	__s32 rc;
	__u8 key[];
};

/* Where the runs of one burst have got to. A signal ends a repeated test run
 * early, so only this tells how far it went. What is counted are entries, or
 * where the values are per CPU, the CPUs of all entries. */
struct cursor {
	__u32 next;
	__u32 end;
	__u32 failed;
	__u32 bucket; /* of the socket at which the last quiet run was made */
};

struct range {
	__u32 offset;
	__u32 size;
};

const volatile __u32 key_size = 4;
const volatile __u32 value_size = 4; /* with per-CPU values, of all together */
const volatile __u32 value_offset = 16; /* of the value in an entry */
const volatile __u32 lock_offset = 0;	/* of the bpf_spin_lock in a value */
const volatile __u64 update_flags = 0;
const volatile bool keys_only = false;

/* Of a map with per-CPU values: how many, and the size of one. */
const volatile __u32 cpus = 1;
const volatile __u32 elem_size = 4;

/* What an update leaves as the entry in the map has it. With none, the verifier
 * drops the code for it. */
const volatile __u32 keep_count = 0;
const volatile struct range keep[KEEP_RANGES] = {};

/* The map to be read and written: replaced by the real one at load. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__uint(key_size, 4);
	__uint(value_size, 4);
} target SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, 24);
} write_entries SEC(".maps"), lookup_entries SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct cursor);
} write_cursor SEC(".maps"), lookup_cursor SEC(".maps");

/* One key and value on their way to bpf_seq_write, which takes no pointer into
 * a map element that an iterator was given. One reader at a time. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, 8);
} scratch SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} visited SEC(".maps");

/* keep_ranges takes into e what the map's entry, if there is one, has to keep. It
 * reads without the value's lock, under which no helper may be called. */
static __always_inline void keep_ranges(struct entry *e)
{
	void *value = (void *)e + value_offset;
	void *held = bpf_map_lookup_elem(&target, e->key);

	if (!held)
		return;
	for (__u32 i = 0; i < KEEP_RANGES; i++) {
		if (i >= keep_count)
			break;
		bpf_probe_read_kernel(value + keep[i].offset, keep[i].size, held + keep[i].offset);
	}
}

static __always_inline int write_entry(struct entry *e)
{
	int rc;

	if (e->op == OP_UPDATE) {
		if (keep_count)
			keep_ranges(e);
		return bpf_map_update_elem(&target, e->key, (void *)e + value_offset, update_flags);
	}
	if (e->op != OP_DELETE)
		return 0;
	rc = bpf_map_delete_elem(&target, e->key);
	return rc == -ENOENT ? 0 : rc; /* absent is what was asked for */
}

/* write_marked writes the next entries. The caller holds the CPU's mark. */
static __always_inline void write_marked(struct cursor *c, volatile struct own_mark *own)
{
	__u32 at = c->next, failed = c->failed;

	own->task = bpf_get_current_task();
	for (int i = 0; i < RUN_ENTRIES; i++) {
		struct entry *e;

		if (at >= c->end)
			break;
		e = bpf_map_lookup_elem(&write_entries, &at);
		if (!e)
			break;
		if (e->op != OP_NONE) {
			e->rc = write_entry(e);
			if (e->rc)
				failed++;
		}
		at++;
	}
	own->task = 0;
	c->failed = failed;
	c->next = at;
}

/* Where a test run can be preempted (before 6.12), another thread of ours may be in
 * the middle of its own on this CPU. Its mark must stay true: the run that does not
 * find itself alone writes nothing, and user space tries again. To look at the task
 * first and then to set it would not do, with a preemption between the two. */
static __always_inline int write_run(void)
{
	__u32 zero = 0;
	struct cursor *c = bpf_map_lookup_elem(&write_cursor, &zero);
	volatile struct own_mark *own = bpf_map_lookup_elem(&own_writer, (void *)&zero);

	if (!c || !own)
		return 1;
	__sync_fetch_and_add(&own->runs, 1);
	if (own->runs == 1)
		write_marked(c, own);
	__sync_fetch_and_add(&own->runs, -1);
	return 1;
}

SEC("cgroup_skb/ingress")
int mapsync_write(struct __sk_buff *skb)
{
	return write_run();
}

struct bpf_iter__udp {
	void *udp_sk;
	int bucket;
} __attribute__((preserve_access_index));

/* The same for kernels whose test runs packets can interrupt. From 5.9 to 6.5 an
 * iterator over UDP sockets shows each under its bucket's lock, with bottom
 * halves off. Asking for a retry ends the read, and the next comes back here. */
SEC("iter/udp")
int mapsync_write_quiet(struct bpf_iter__udp *ctx)
{
	__u32 zero = 0;
	struct cursor *c = bpf_map_lookup_elem(&write_cursor, &zero);

	if (!ctx->udp_sk || !c)
		return 0; /* the end of all sockets: no lock is held */
	c->bucket = ctx->bucket;
	return write_run();
}

static __always_inline void copy_value(struct entry *e, const void *value)
{
	bpf_probe_read_kernel((void *)e + value_offset, value_size, value);
}

/* copy_locked copies under the value's lock, where no helper may be called. The
 * lock itself reads as zero, as in a bpf(2) lookup. */
static __always_inline void copy_locked(struct entry *e, void *value)
{
	struct bpf_spin_lock *lock = value + lock_offset;
	void *to = (void *)e + value_offset;
	__u32 i;

	bpf_spin_lock(lock);
	for (i = 0; i + 4 <= value_size; i += 4)
		if (i != lock_offset)
			*(__u32 *)(to + i) = *(__u32 *)(value + i);
	for (; i < value_size; i++)
		*(__u8 *)(to + i) = *(__u8 *)(value + i);
	bpf_spin_unlock(lock);
	*(__u32 *)(to + lock_offset) = 0;
}

static __always_inline int lookup(bool locked)
{
	__u32 zero = 0, at;
	struct cursor *c = bpf_map_lookup_elem(&lookup_cursor, &zero);

	if (!c)
		return 1;
	at = c->next;
	for (int i = 0; i < RUN_ENTRIES; i++) {
		struct entry *e;
		void *value;

		if (at >= c->end)
			break;
		e = bpf_map_lookup_elem(&lookup_entries, &at);
		if (!e)
			break;
		value = bpf_map_lookup_elem(&target, e->key);
		if (!value)
			e->rc = -ENOENT;
		else if (locked)
			copy_locked(e, value);
		else
			copy_value(e, value);
		at++;
	}
	c->next = at;
	return 1;
}

SEC("cgroup_skb/ingress")
int mapsync_lookup(struct __sk_buff *skb)
{
	return lookup(false);
}

SEC("cgroup_skb/ingress")
int mapsync_locked(struct __sk_buff *skb)
{
	return lookup(true);
}

/* A program sees the value of one CPU at a time (from 5.19): each step is one CPU
 * of one entry. All numbers have 64 bits, or the compiler would compare a copy of
 * cpu, and the verifier not know the bounds of cpu itself. */
SEC("cgroup_skb/ingress")
int mapsync_lookup_percpu(struct __sk_buff *skb)
{
	__u32 zero = 0, slot;
	struct cursor *c = bpf_map_lookup_elem(&lookup_cursor, &zero);
	__u64 at, n, cpu;

	if (!c)
		return 1;
	at = c->next;
	n = at / cpus;
	cpu = at % cpus;
	for (int i = 0; i < RUN_ENTRIES; i++) {
		struct entry *e;
		void *value;

		if (at >= c->end)
			break;
		if (cpu >= cpus) {
			cpu = 0;
			n++;
		}
		slot = n;
		e = bpf_map_lookup_elem(&lookup_entries, &slot);
		if (!e)
			break;
		value = bpf_map_lookup_percpu_elem(&target, e->key, cpu);
		if (!value)
			e->rc = -ENOENT;
		else
			bpf_probe_read_kernel((void *)e + value_offset + cpu * ALIGN8(elem_size),
					      elem_size, value);
		cpu++;
		at++;
	}
	c->next = at;
	return 1;
}

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
} __attribute__((preserve_access_index));

struct bpf_iter__bpf_map_elem {
	struct bpf_iter_meta *meta;
	void *key;
	void *value;
} __attribute__((preserve_access_index));

SEC("iter/bpf_map_elem")
int mapsync_dump(struct bpf_iter__bpf_map_elem *ctx)
{
	void *key = ctx->key, *value = ctx->value;
	struct seq_file *seq = ctx->meta->seq;
	__u32 zero = 0, size = key_size;
	void *out;

	if (!key || !value)
		return 0;
	out = bpf_map_lookup_elem(&scratch, &zero);
	if (!out)
		return 0;
	bpf_probe_read_kernel(out, key_size, key);
	if (!keys_only) {
		bpf_probe_read_kernel(out + key_size, value_size, value);
		size += value_size;
	}
	bpf_seq_write(seq, out, size);
	return 0;
}

SEC("iter/bpf_map_elem")
int mapsync_count(struct bpf_iter__bpf_map_elem *ctx)
{
	__u32 zero = 0;
	__u64 *n;

	if (!ctx->key)
		return 0;
	n = bpf_map_lookup_elem(&visited, &zero);
	if (n)
		(*n)++;
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
