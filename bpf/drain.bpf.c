//go:build ignore

// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Sums of the entries that a collector drains from a map: that it removes by lookup-and-delete of
 * bpf(2), single or in batches. The programs run at the end of the call, and add the values that it
 * has returned to the sums. They stay attached while syncd restarts.
 *
 * The object is loaded once for each drained map.
 */
#include "syscall.h"

#include <linux/ptrace.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* The loader sets the sizes of an entry in bytes, and divides the value into fields that are added
 * and ranges of which the last content counts. */
#define MAX_RANGES 64
#define ORIGIN_BYTES 8

struct range {
	__u32 offset;
	__u32 size; /* 0: after the last range */
};

volatile const __u32 key_size = 8;
volatile const __u32 value_size = 8;
/* Programs with another number than the state do nothing. */
volatile const __u64 generation = 1;
volatile const struct range added[MAX_RANGES] = {};
volatile const struct range copied[MAX_RANGES] = {};

/* drain_state is shared with syncd through a memory mapping. Mirrored by syncd/drained/state.go. */
struct drain_state {
	__u64 origin;	  /* the end of each key of the sums that this host adds to */
	__u64 generation; /* of the programs that add */
	__u64 entered;	  /* calls that have begun */
	__u64 left;	  /* calls that have ended, and whose entries are in the sums */
	__u64 entries;	  /* added to the sums */
	__u64 unread;	  /* entries and calls whose entries could not be read */
	__u64 full;	  /* entries for which the sums had no room */
	__u64 missed;	  /* calls whose end was not seen */
	__u64 layout;	  /* of syncd: identifies the layout of the sums */
	__u64 version;	  /* of syncd: identifies the programs that add */
	__u64 unseen;	  /* calls whose beginning was not seen, and whose entries were added */
	__u32 map_id;	  /* the drained map, 0: none */
	__u32 exclusive;  /* no programs of another generation are attached */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct drain_state);
} drain_state SEC(".maps");

/* The sums: the key of the drained map and the origin, and a value of the drained map. The loader
 * sets the sizes. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__uint(key_size, 8 + ORIGIN_BYTES);
	__uint(value_size, 8);
} drain_sums SEC(".maps");

/* A call that has begun and not ended, by its thread. The program that removes it adds the entries
 * of the call. */
struct drain_call {
	__u64 began; /* bpf_ktime_get_ns */
	__u64 generation;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __u64);
	__type(value, struct drain_call);
} drain_calls SEC(".maps");

/* work is a call whose entries are being added on this CPU, and the present entry. */
struct work {
	__u64 keys;   /* user address */
	__u64 values; /* user address */
	__u32 count;
	__u32 next; /* the first entry that is not added */
	__u8 key[MAX_KEY + ORIGIN_BYTES];
	__u8 value[MAX_VALUE];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct work);
} drain_work SEC(".maps");

/* The kernel may preempt a program for a run of another one. */
enum { WORK_BATCH, WORK_ELEM };

/* The program that adds the entries of a call. The maximum number of tail calls limits the entries
 * of a call on kernels before 5.17, which have no bpf_loop. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
} drain_next SEC(".maps");

#define ENTRIES_PER_TAIL_CALL 256

static __always_inline struct drain_state *state(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&drain_state, &zero);
}

static __always_inline struct work *work(__u32 which)
{
	return bpf_map_lookup_elem(&drain_work, &which);
}

/* add_to adds the present value to a sum. */
static __always_inline void add_to(__u8 *sum, struct work *w)
{
	for (int i = 0; i < MAX_RANGES && added[i].size; i++) {
		__u32 at = added[i].offset;

		if (at > MAX_VALUE - 8)
			return;
		if (added[i].size == 8)
			__sync_fetch_and_add((__u64 *)(sum + at), *(__u64 *)(w->value + at));
		else
			__sync_fetch_and_add((__u32 *)(sum + at), *(__u32 *)(w->value + at));
	}
	for (int i = 0; i < MAX_RANGES && copied[i].size; i++) {
		__u32 at = copied[i].offset, size = copied[i].size;

		if (at >= MAX_VALUE || size > MAX_VALUE - at)
			return;
		bpf_probe_read_kernel(sum + at, size, w->value + at);
	}
}

/* add adds the present entry to the sums. It returns false if they have no room. */
static __always_inline bool add(struct drain_state *s, struct work *w)
{
	__u8 *sum;

	if (key_size > MAX_KEY ||
	    bpf_probe_read_kernel(w->key + key_size, ORIGIN_BYTES, &s->origin))
		return false;
	sum = bpf_map_lookup_elem(&drain_sums, w->key);
	if (!sum) {
		if (!bpf_map_update_elem(&drain_sums, w->key, w->value, BPF_NOEXIST))
			return true;
		/* Another CPU may have added the key. */
		sum = bpf_map_lookup_elem(&drain_sums, w->key);
		if (!sum)
			return false;
	}
	add_to(sum, w);
	return true;
}

/* add_drained is add for a drained entry, with its counter. */
static __always_inline void add_drained(struct drain_state *s, struct work *w)
{
	__sync_fetch_and_add(add(s, w) ? &s->entries : &s->full, 1);
}

/* add_user adds entry i of the call. */
static __always_inline void add_user(struct drain_state *s, struct work *w, __u64 i)
{
	if (key_size > MAX_KEY || value_size > MAX_VALUE ||
	    bpf_probe_read_user(w->key, key_size, (void *)w->keys + i * key_size) ||
	    bpf_probe_read_user(w->value, value_size, (void *)w->values + i * value_size)) {
		__sync_fetch_and_add(&s->unread, 1);
		return;
	}
	add_drained(s, w);
}

/* leave_call ends a call whose entries have been added. */
static __always_inline void leave_call(struct drain_state *s, __u32 unread)
{
	if (unread)
		__sync_fetch_and_add(&s->unread, unread);
	__sync_fetch_and_add(&s->left, 1);
}

static long add_in_loop(__u32 i, void *unused)
{
	struct drain_state *s = state();
	struct work *w = work(WORK_BATCH);

	if (!s || !w)
		return 1;
	add_user(s, w, i);
	return 0;
}

/* add_all adds the entries of the call at once. */
static __always_inline void add_all(void)
{
	struct drain_state *s = state();
	struct work *w = work(WORK_BATCH);
	long done;

	if (!s || !w)
		return;
	done = bpf_loop(w->count, add_in_loop, NULL, 0);
	leave_call(s, done < 0 ? w->count : 0);
}

/* add_some adds some entries of the call, and continues with a tail call. */
static __always_inline void add_some(void *ctx)
{
	struct drain_state *s = state();
	struct work *w = work(WORK_BATCH);
	__u32 first;

	if (!s || !w)
		return;
	first = w->next;
	for (__u32 i = 0; i < ENTRIES_PER_TAIL_CALL; i++) {
		if (first + i >= w->count) {
			leave_call(s, 0);
			return;
		}
		add_user(s, w, first + i);
	}
	w->next = first + ENTRIES_PER_TAIL_CALL;
	if (w->next < w->count)
		bpf_tail_call(ctx, &drain_next, 0);
	leave_call(s, w->next < w->count ? w->count - w->next : 0);
}

/* enter_call begins a call that may drain the map. */
static __always_inline void enter_call(__u32 map_id)
{
	struct drain_state *s = state();
	struct drain_call now = { .generation = generation }, *last;
	__u64 thread = bpf_get_current_pid_tgid();

	if (!s || !map_id || map_id != s->map_id || s->generation != generation)
		return;
	now.began = bpf_ktime_get_ns();
	last = bpf_map_lookup_elem(&drain_calls, &thread);
	if (last) {
		/* Programs of another generation have seen the same call, while syncd replaced
		 * them. */
		if (last->generation == generation)
			__sync_fetch_and_add(&s->missed, 1);
		*last = now;
		return;
	}
	if (!bpf_map_update_elem(&drain_calls, &thread, &now, BPF_NOEXIST))
		__sync_fetch_and_add(&s->entered, 1);
}

/* takes_call ends the call of the current thread, and reports whether this program adds its
 * entries. The caller calls leave_call when it has. A call may have begun before syncd followed the
 * map, and the kernel may have skipped the program at its beginning. */
static __always_inline bool takes_call(struct drain_state *s, __u32 map_id)
{
	__u64 thread = bpf_get_current_pid_tgid();

	if (s->generation != generation)
		return false;
	if (!bpf_map_delete_elem(&drain_calls, &thread))
		return true;
	/* Otherwise a program of another generation may have added the entries. */
	if (!map_id || map_id != s->map_id || !s->exclusive)
		return false;
	__sync_fetch_and_add(&s->unseen, 1);
	__sync_fetch_and_add(&s->entered, 1);
	return true;
}

/* end_call adds the entries of a call that has ended. known is false if their number is unknown. */
static __always_inline void end_call(void *ctx, __u32 map_id, const struct call *c, bool known)
{
	struct drain_state *s = state();
	struct work *w = work(WORK_BATCH);

	if (!s || !w || !takes_call(s, map_id))
		return;
	/* The file descriptor may have been closed meanwhile, or syncd may follow another map. */
	if (map_id != s->map_id)
		known = false;
	if (!known || !c->count) {
		leave_call(s, !known);
		return;
	}
	w->keys = (__u64)c->keys;
	w->values = (__u64)c->values;
	w->count = c->count;
	w->next = 0;
	bpf_tail_call(ctx, &drain_next, 0);
	leave_call(s, c->count);
}

/* ---- fexit ---- */

SEC("fentry/htab_map_lookup_and_delete_batch")
int BPF_PROG(fentry_batch, struct bpf_map *map)
{
	enter_call(map->id);
	return 0;
}

SEC("fexit/htab_map_lookup_and_delete_batch")
int BPF_PROG(fexit_batch, struct bpf_map *map, const struct batch_attr *attr,
	     const struct batch_attr *uattr, int result)
{
	struct call c = { .command = BPF_MAP_LOOKUP_AND_DELETE_BATCH };
	bool known = keys_known(&c, result);

	bpf_probe_read_kernel(&c.keys, sizeof(c.keys), &attr->keys);
	bpf_probe_read_kernel(&c.values, sizeof(c.values), &attr->values);
	if (may_have_written(c.command, result) && known &&
	    bpf_probe_read_user(&c.count, sizeof(c.count), &uattr->count))
		known = false;
	end_call(ctx, map->id, &c, known);
	return 0;
}

SEC("fexit/htab_map_lookup_and_delete_batch")
int BPF_PROG(fexit_batch_loop)
{
	add_all();
	return 0;
}

SEC("fexit/htab_map_lookup_and_delete_batch")
int BPF_PROG(fexit_batch_tail)
{
	add_some(ctx);
	return 0;
}

SEC("fentry/htab_map_lookup_and_delete_elem")
int BPF_PROG(fentry_elem, struct bpf_map *map)
{
	enter_call(map->id);
	return 0;
}

SEC("fexit/htab_map_lookup_and_delete_elem")
int BPF_PROG(fexit_elem, struct bpf_map *map, void *key, void *value, __u64 flags, int result)
{
	struct drain_state *s = state();
	struct work *w = work(WORK_ELEM);
	bool unread;

	if (!s || !w || !takes_call(s, map->id))
		return 0;
	if (result) {
		leave_call(s, 0);
		return 0;
	}
	unread = map->id != s->map_id || key_size > MAX_KEY || value_size > MAX_VALUE ||
		 bpf_probe_read_kernel(w->key, key_size, key) ||
		 bpf_probe_read_kernel(w->value, value_size, value);
	if (!unread)
		add_drained(s, w);
	leave_call(s, unread);
	return 0;
}

/* ---- the system call itself ---- */

/* drains reports whether a command may drain a map. */
static __always_inline bool drains(__u32 command)
{
	return command == BPF_MAP_LOOKUP_AND_DELETE_BATCH ||
	       command == BPF_MAP_LOOKUP_AND_DELETE_ELEM;
}

/* drained_by sets c to the attributes of a bpf(2) call of the current task. It returns the id of
 * its map, or 0 for another call. */
static __always_inline __u32 drained_by(struct pt_regs___kernel *regs, struct call *c)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	bool compat = in_compat_call(task);

	if (!in_bpf_call(regs, compat))
		return 0;
	c->command = call_argument(regs, 0, compat);
	if (!drains(c->command))
		return 0;
	c->attr = (void *)call_argument(regs, 1, compat);
	return read_attributes(c) ? map_of_fd(task, c->map_fd) : 0;
}

/* end_missed_call ends a call of the current thread whose end was not seen: the thread makes
 * another system call. */
static __always_inline void end_missed_call(void)
{
	struct drain_state *s = state();
	__u64 thread = bpf_get_current_pid_tgid();
	struct drain_call *last;

	if (!s || s->generation != generation)
		return;
	last = bpf_map_lookup_elem(&drain_calls, &thread);
	if (!last || last->generation != generation || bpf_map_delete_elem(&drain_calls, &thread))
		return;
	__sync_fetch_and_add(&s->missed, 1);
	__sync_fetch_and_add(&s->left, 1);
}

static __always_inline int enter_syscall(struct pt_regs___kernel *regs)
{
	struct call c = {};

	end_missed_call();
	enter_call(drained_by(regs, &c));
	return 0;
}

/* has_count reports whether the kernel has written the number of drained entries of a batch. */
static __always_inline bool has_count(long result)
{
	switch (result) {
	case 0:
	case -ENOENT:
	case -ENOSPC:
	case -ENOMEM:
	case -EBUSY:
	case -EDEADLK:
	case -ETIMEDOUT:
		return true;
	}
	return false;
}

static __always_inline int end_syscall(void *ctx, struct pt_regs___kernel *regs, long result)
{
	struct call c = {};
	__u32 id = drained_by(regs, &c);

	if (!drains(c.command))
		return 0;
	if (is_batch(c.command) ? !has_count(result) : result != 0)
		c.count = 0;
	end_call(ctx, id, &c, keys_known(&c, result));
	return 0;
}

SEC("kprobe")
int BPF_KPROBE(kprobe_syscall)
{
	return enter_syscall(task_registers());
}

SEC("kretprobe")
int BPF_KRETPROBE(kretprobe_syscall, long result)
{
	return end_syscall(ctx, task_registers(), result);
}

SEC("kretprobe")
int kretprobe_syscall_loop(void *ctx)
{
	add_all();
	return 0;
}

SEC("kretprobe")
int kretprobe_syscall_tail(void *ctx)
{
	add_some(ctx);
	return 0;
}

static __always_inline bool calls_bpf(struct pt_regs___kernel *regs)
{
	__u32 number = DIRECT_CALL_NUMBER(regs);

	return number == NR_BPF || number == NR_BPF_COMPAT;
}

SEC("tp_btf/sys_enter")
int BPF_PROG(tracepoint_enter, struct pt_regs___kernel *regs)
{
	return calls_bpf(regs) ? enter_syscall(regs) : 0;
}

SEC("tp_btf/sys_exit")
int BPF_PROG(tracepoint_exit, struct pt_regs___kernel *regs, long result)
{
	return calls_bpf(regs) ? end_syscall(ctx, regs, result) : 0;
}

SEC("tp_btf/sys_exit")
int BPF_PROG(tracepoint_exit_loop)
{
	add_all();
	return 0;
}

SEC("tp_btf/sys_exit")
int BPF_PROG(tracepoint_exit_tail)
{
	add_some(ctx);
	return 0;
}

/* The entry that add_back adds: the key without the origin, and the value. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct work);
} drain_back SEC(".maps");

/* syncd runs this program to add an entry itself. */
SEC("cgroup_skb/egress")
int add_back(struct __sk_buff *skb)
{
	struct drain_state *s = state();
	__u32 zero = 0;
	struct work *w = bpf_map_lookup_elem(&drain_back, &zero);

	return s && w && add(s, w);
}
