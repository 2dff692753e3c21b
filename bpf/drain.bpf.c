//go:build ignore

// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Sums of the entries that a collector drains from a map: that it removes by lookup-and-delete of
 * bpf(2), single or in batches. The programs run at the end of the call, and add the values that it
 * has returned to the sums. They stay attached while syncd restarts.
 *
 * The object is loaded once for each drained map.
 */
#include "drain_sums.h"

#include <linux/ptrace.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* enter_call begins a call that may drain the map.
 *
 * syncd replaces programs by those of the next generation while calls run. Programs of both
 * generations then see a call, and the generation of the state may change between two of them. */
static __always_inline void enter_call(__u32 map_id)
{
	struct drain_state *s = state();
	struct drain_call now = { .generation = generation }, *last;
	__u64 thread = bpf_get_current_pid_tgid();
	bool superseded;

	if (!s || !map_id || map_id != s->map_id || s->generation < generation)
		return;
	superseded = s->generation != generation;
	/* Newer programs may have run before, when the state did not have their generation yet. If
	 * they run afterwards, they begin the call. */
	if (superseded && !newest_begins_first)
		return;
	now.began = bpf_ktime_get_ns();
	last = bpf_map_lookup_elem(&drain_calls, &thread);
	if (last) {
		/* Newer programs have begun this call. */
		if (superseded)
			return;
		/* Former programs may have begun the same call, unless newer ones run first. */
		if (newest_begins_first || last->generation == generation)
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
	bool superseded;

	if (s->generation < generation)
		return false;
	superseded = s->generation != generation;
	/* As above. syncd adds the former sums to the present ones after the end of such a call. It
	 * does not wait for calls that newer programs have begun. */
	if (superseded) {
		struct drain_call *last = bpf_map_lookup_elem(&drain_calls, &thread);

		if (!newest_ends_first || !last || last->generation != generation)
			return false;
	}
	if (!bpf_map_delete_elem(&drain_calls, &thread))
		return true;
	/* Otherwise a program of another generation may have added the entries. */
	if (superseded || !map_id || map_id != s->map_id || !s->exclusive)
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
	bool known = keys_known(&c, result);

	if (!drains(c.command))
		return 0;
	if (is_batch(c.command) ? !has_count(result) : result != 0)
		c.count = 0;
	/* The kernel deletes the entry before it fails to copy the value. */
	if (c.command == BPF_MAP_LOOKUP_AND_DELETE_ELEM && result == -EFAULT)
		known = false;
	end_call(ctx, id, &c, known);
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

/* The entry that syncd adds itself: the key, and for add_back the value. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct work);
} drain_back SEC(".maps");

static __always_inline struct work *back(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&drain_back, &zero);
}

/* syncd runs this program to add an entry itself. */
SEC("cgroup_skb/egress")
int add_back(struct __sk_buff *skb)
{
	struct drain_state *s = state();
	struct work *w = back();

	return s && w && add(s, w, true);
}

/* The sums of a former generation. The loader replaces this map. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__uint(key_size, 8 + ORIGIN_BYTES);
	__uint(value_size, 8);
} former_sums SEC(".maps");

/* syncd runs this program to move a sum of this host from former_sums to the present sums. If syncd
 * is killed, the program has run as a whole or not at all: no sum is in both. Without room, the sum
 * stays in former_sums. */
SEC("cgroup_skb/egress")
int move_former(struct __sk_buff *skb)
{
	struct drain_state *s = state();
	struct work *w = back();
	void *former;

	if (!s || !w || value_size > MAX_VALUE)
		return 0;
	former = bpf_map_lookup_elem(&former_sums, w->key);
	if (!former || bpf_probe_read_kernel(w->value, value_size, former) ||
	    bpf_map_delete_elem(&former_sums, w->key))
		return 0;
	if (!add(s, w, false) && bpf_map_update_elem(&former_sums, w->key, w->value, BPF_NOEXIST))
		__sync_fetch_and_add(&s->full, 1);
	return 0;
}
