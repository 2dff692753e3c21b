//go:build ignore

// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * The hooks on the kernel's functions that write maps (kernel/bpf/hashtab.c and arraymap.c).
 *
 * Both attach methods report after the function has returned, so a failed write is never reported.
 * fexit receives arguments and result together. A kprobe saves the arguments, and a return probe
 * looks them up again.
 */
#include "write_context.h"

#include <linux/ptrace.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

struct bpf_htab {
	struct bpf_map map;
} __attribute__((preserve_access_index));

struct bpf_lru_node {
	__u16 cpu;
} __attribute__((preserve_access_index));

struct htab_elem {
	struct bpf_lru_node lru_node;
	__u32 hash;
	char key[0];
} __attribute__((preserve_access_index));

/* Report own writes too, with context CTX_OWN. The tests of the write context use it. */
volatile const bool emit_own = false;

#include "lookup.h"
#include "syscall.h"

/* syncd runs this program once at start. It records the calling process as syncd's process. */
SEC("cgroup_skb/egress")
int set_own_process(struct __sk_buff *skb)
{
	own_process = current_process();
	return 0;
}

/* skip_own_write is the fast path for the writes of syncd's writing program. While a hook runs for
 * such a write, the same hook does not run for a packet that interrupts it. The hook does not
 * examine own writes further, so an own write that fails counts like any other own write. */
static __always_inline bool skip_own_write(__u32 kind)
{
	struct slot *s;

	if (emit_own || !own_write())
		return false;
	s = slot_at(kind, 0);
	if (!s || in_interrupt(s))
		return false;
	/* The nesting level stays as it is: an interrupt may be counting in the same slot. */
	__sync_fetch_and_add(&s->seen, 1);
	__sync_fetch_and_add(&s->own, 1);
	return true;
}

static __always_inline void report(void *ctx, __u32 kind, enum op op, bool kprobe, bool failed,
				   __u32 id, const void *key, const void *value)
{
	struct watch *w = watch_of(id);
	struct slot *s, *base;
	struct caller caller;
	enum context context;
	__u32 level;

	if (!w)
		return;
	s = enter(kind, &base, &level);
	if (!s)
		return;
	s->seen++;
	if (failed) {
		s->failed++;
		goto out;
	}
	context = context_of(s, kprobe);
	/* An eviction is made by the map itself, also if an own write needed the space. */
	if (context == CTX_OWN && op != OP_EVICT) {
		s->own++;
		if (!emit_own)
			goto out;
	}
	/* A program may write the value that the entry has, which changes nothing. */
	if (!kprobe && w->uses && op == OP_UPDATE && context <= CTX_PROCESS)
		note_use(kind, w, key, false);
	if (op == OP_DELETE && context == CTX_SYSCALL) {
		set_caller(&caller);
		value = &caller;
	}
	emit(ctx, s, kind * LEVELS + level, id, w, op, context, key, value);
out:
	leave(base);
}

static __always_inline const void *evicted_key(const struct bpf_lru_node *node)
{
	return (const void *)node - bpf_core_field_offset(struct htab_elem, lru_node) +
	       bpf_core_field_offset(struct htab_elem, key);
}

/* ---- fexit: one program per function, with the result after the arguments ---- */

/* The verifier tracks the type of map here, so the id is read without a helper. */
static __always_inline int report_exit(void *ctx, __u32 kind, enum op op, const struct bpf_map *map,
				       const void *key, const void *value, int result)
{
	__u32 id = map->id;

	if (watch_of(id) && !skip_own_write(kind))
		report(ctx, kind, op, false, result != 0, id, key, value);
	return 0;
}

#define FEXIT_UPDATE(name, function, kind)                                                       \
	SEC("fexit/" function)                                                                   \
	int BPF_PROG(name, struct bpf_map *map, void *key, void *value, __u64 flags, int result) \
	{                                                                                        \
		return report_exit(ctx, kind, OP_UPDATE, map, key, value, result);               \
	}

#define FEXIT_DELETE(name, function, kind)                                        \
	SEC("fexit/" function)                                                    \
	int BPF_PROG(name, struct bpf_map *map, void *key, int result)            \
	{                                                                         \
		return report_exit(ctx, kind, OP_DELETE, map, key, NULL, result); \
	}

#define FEXIT_LOOKUP_DELETE(name, function, kind)                                                \
	SEC("fexit/" function)                                                                   \
	int BPF_PROG(name, struct bpf_map *map, void *key, void *value, __u64 flags, int result) \
	{                                                                                        \
		return report_exit(ctx, kind, OP_DELETE, map, key, NULL, result);                \
	}

FEXIT_UPDATE(fexit_update, "htab_map_update_elem", KIND_UPDATE)
FEXIT_UPDATE(fexit_lru_update, "htab_lru_map_update_elem", KIND_LRU_UPDATE)
FEXIT_DELETE(fexit_delete, "htab_map_delete_elem", KIND_DELETE)
FEXIT_DELETE(fexit_lru_delete, "htab_lru_map_delete_elem", KIND_LRU_DELETE)
FEXIT_LOOKUP_DELETE(fexit_lookup_delete, "htab_map_lookup_and_delete_elem", KIND_LOOKUP_DELETE)
FEXIT_LOOKUP_DELETE(fexit_lru_lookup_delete, "htab_lru_map_lookup_and_delete_elem",
		    KIND_LRU_LOOKUP_DELETE)

/* Maps with per-CPU values. A program writes the value of its own CPU. bpf(2) writes the values of
 * all CPUs, through one function for both map types. Deletes and evictions use the functions
 * above. */
FEXIT_UPDATE(fexit_percpu_update, "htab_percpu_map_update_elem", KIND_PERCPU_UPDATE)
FEXIT_UPDATE(fexit_lru_percpu_update, "htab_lru_percpu_map_update_elem", KIND_LRU_PERCPU_UPDATE)
FEXIT_UPDATE(fexit_percpu_syscall, "bpf_percpu_hash_update", KIND_PERCPU_SYSCALL)
FEXIT_LOOKUP_DELETE(fexit_percpu_lookup_delete, "htab_percpu_map_lookup_and_delete_elem",
		    KIND_PERCPU_LOOKUP_DELETE)
FEXIT_LOOKUP_DELETE(fexit_lru_percpu_lookup_delete, "htab_lru_percpu_map_lookup_and_delete_elem",
		    KIND_LRU_PERCPU_LOOKUP_DELETE)

/* Arrays. The first function writes the value of the own CPU in an array with per-CPU values. */
FEXIT_UPDATE(fexit_array_update, "array_map_update_elem", KIND_ARRAY_UPDATE)
FEXIT_UPDATE(fexit_percpu_array_syscall, "bpf_percpu_array_update", KIND_PERCPU_ARRAY_SYSCALL)

/* A batch lookup-and-delete calls none of the functions above. */
#define FEXIT_DRAIN(name, function, kind)                                                  \
	SEC("fexit/" function)                                                             \
	int BPF_PROG(name, struct bpf_map *map, const void *attr, void *uattr, int result) \
	{                                                                                  \
		__u32 id = map->id;                                                        \
		if (watch_of(id))                                                          \
			report_drain(ctx, kind, id, attr, uattr, result);                  \
		return 0;                                                                  \
	}

FEXIT_DRAIN(fexit_drain, "htab_map_lookup_and_delete_batch", KIND_DRAIN)
FEXIT_DRAIN(fexit_lru_drain, "htab_lru_map_lookup_and_delete_batch", KIND_LRU_DRAIN)
FEXIT_DRAIN(fexit_percpu_drain, "htab_percpu_map_lookup_and_delete_batch", KIND_PERCPU_DRAIN)
FEXIT_DRAIN(fexit_lru_percpu_drain, "htab_lru_percpu_map_lookup_and_delete_batch",
	    KIND_LRU_PERCPU_DRAIN)

/* The kernel declares the map as void *, so the id cannot be read directly. */
SEC("fexit/htab_lru_map_delete_node")
int BPF_PROG(fexit_evict, struct bpf_htab *htab, struct bpf_lru_node *node, __u64 deleted)
{
	__u32 id = BPF_CORE_READ(htab, map.id);

	if (watch_of(id))
		report(ctx, KIND_EVICT, OP_EVICT, false, !returned_true(deleted), id,
		       evicted_key(node), NULL);
	return 0;
}

/* ---- fexit: lookups ---- */

/* Verified programs call this function directly for HASH and LRU_HASH maps, and in newer kernels
 * for PERCPU_HASH maps. */
SEC("fexit/__htab_map_lookup_elem")
int BPF_PROG(fexit_lookup, struct bpf_map *map, void *key, struct htab_elem *found)
{
	__u32 id = map->id, type;
	struct watch *w = watch_of(id);
	__u64 number;

	if (!w || !found)
		return 0;
	if (w->uses)
		note_use(KIND_LOOKUP, w, key, true);
	if (!w->lookups)
		return 0;
	type = map->map_type;
	if ((type == BPF_MAP_TYPE_PERCPU_HASH || type == BPF_MAP_TYPE_LRU_PERCPU_HASH) &&
	    w->key_size % 8 == 0)
		number = number_of_cpu_values(w, cpu_values(w, found));
	else
		number = number_of(w, found);
	return report_lookup(ctx, KIND_LOOKUP, id, w, key, number);
}

/* Other lookups call one of these: those in LRU_PERCPU_HASH maps, and those at an instruction that
 * serves several maps. These functions call the function above or contain a copy of it. Both hooks
 * have the same number for an entry, and the second one reports nothing, except in maps with
 * per-CPU values and other keys than multiples of 8 bytes. They return the value. */
#define FEXIT_LOOKUP(name, function, kind, number)                      \
	SEC("fexit/" function)                                          \
	int BPF_PROG(name, struct bpf_map *map, void *key, void *value) \
	{                                                               \
		__u32 id = map->id;                                     \
		struct watch *w = watch_of(id);                         \
		if (!w || !value)                                       \
			return 0;                                       \
		if (w->uses)                                            \
			note_use(kind, w, key, true);                   \
		if (!w->lookups)                                        \
			return 0;                                       \
		return report_lookup(ctx, kind, id, w, key, number);    \
	}

#define ELEM_OF_VALUE (value - ALIGN8(w->key_size) - bpf_core_field_offset(struct htab_elem, key))
#define CPU_VALUES ((__u64)value - this_cpu_address(NULL))

FEXIT_LOOKUP(fexit_hash_lookup, "htab_map_lookup_elem", KIND_HASH_LOOKUP,
	     number_of(w, ELEM_OF_VALUE))
FEXIT_LOOKUP(fexit_lru_lookup, "htab_lru_map_lookup_elem", KIND_LRU_LOOKUP,
	     number_of(w, ELEM_OF_VALUE))
FEXIT_LOOKUP(fexit_percpu_lookup, "htab_percpu_map_lookup_elem", KIND_PERCPU_LOOKUP,
	     number_of_cpu_values(w, CPU_VALUES))
FEXIT_LOOKUP(fexit_lru_percpu_lookup, "htab_lru_percpu_map_lookup_elem", KIND_LRU_PERCPU_LOOKUP,
	     number_of_cpu_values(w, CPU_VALUES))

/* ---- kprobe: arguments at entry, result at return ---- */

/* frame is one call in progress. The return probe finds it by the stack address of the call's
 * return address. */
struct frame {
	__u64 stack; /* 0: free */
	__u64 key;
	__u64 value;
	__u32 map_id;
	__u32 kind;
};

/* Maximum number of calls in progress on one CPU: of a task and of interrupts, an eviction inside
 * an update, and tasks preempted in a sleepable program. */
#define FRAMES 8

struct frames {
	struct frame frame[FRAMES];
	__u32 next; /* the frame to reuse when all are taken */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct frames);
} frames SEC(".maps");

static __always_inline int save_call(struct pt_regs *ctx, __u32 kind, __u32 id, const void *key,
				     const void *value)
{
	__u64 stack = PT_REGS_SP(ctx);
	__u32 zero = 0, at = FRAMES;
	struct frames *f;

	f = bpf_map_lookup_elem(&frames, &zero);
	if (!f)
		return 0;
#pragma unroll
	for (int i = 0; i < FRAMES; i++)
		if (f->frame[i].stack == stack || (at == FRAMES && !f->frame[i].stack))
			at = i;
	/* A call whose return was not probed leaves its frame behind. The return of this call would
	 * report it, if this call saves none. */
	if (!watch_of(id) || (kind != KIND_EVICT && skip_own_write(kind))) {
		if (at < FRAMES && f->frame[at].stack == stack)
			f->frame[at].stack = 0;
		return 0;
	}
	if (at >= FRAMES)
		at = f->next++ % FRAMES;
	f->frame[at].stack = stack;
	f->frame[at].key = (__u64)key;
	f->frame[at].value = (__u64)value;
	f->frame[at].map_id = id;
	f->frame[at].kind = kind;
	return 0;
}

#define KPROBE_UPDATE(name, kind)                                                     \
	SEC("kprobe")                                                                 \
	int BPF_KPROBE(name, struct bpf_map *map, const void *key, const void *value) \
	{                                                                             \
		return save_call(ctx, kind, BPF_CORE_READ(map, id), key, value);      \
	}

#define KPROBE_DELETE(name, kind)                                               \
	SEC("kprobe")                                                           \
	int BPF_KPROBE(name, struct bpf_map *map, const void *key)              \
	{                                                                       \
		return save_call(ctx, kind, BPF_CORE_READ(map, id), key, NULL); \
	}

KPROBE_UPDATE(kprobe_update, KIND_UPDATE)
KPROBE_UPDATE(kprobe_lru_update, KIND_LRU_UPDATE)
KPROBE_DELETE(kprobe_delete, KIND_DELETE)
KPROBE_DELETE(kprobe_lru_delete, KIND_LRU_DELETE)
KPROBE_DELETE(kprobe_lookup_delete, KIND_LOOKUP_DELETE)
KPROBE_DELETE(kprobe_lru_lookup_delete, KIND_LRU_LOOKUP_DELETE)
KPROBE_UPDATE(kprobe_percpu_update, KIND_PERCPU_UPDATE)
KPROBE_UPDATE(kprobe_lru_percpu_update, KIND_LRU_PERCPU_UPDATE)
KPROBE_UPDATE(kprobe_array_update, KIND_ARRAY_UPDATE)

SEC("kprobe")
int BPF_KPROBE(kprobe_evict, struct bpf_htab *htab, struct bpf_lru_node *node)
{
	return save_call(ctx, KIND_EVICT, BPF_CORE_READ(htab, map.id), evicted_key(node), NULL);
}

static __always_inline bool call_failed(__u32 kind, __u64 result)
{
	return kind == KIND_EVICT ? !returned_true(result) : (int)result != 0;
}

/* One program for the return of all functions. */
SEC("kretprobe")
int BPF_KRETPROBE(kretprobe_any, __u64 result)
{
	__u64 stack = PT_REGS_SP(ctx) - RETURN_ADDRESS_BYTES;
	struct frame call;
	struct frames *f;
	__u32 zero = 0, at = FRAMES;
	enum op op;

	f = bpf_map_lookup_elem(&frames, &zero);
	if (!f)
		return 0;
#pragma unroll
	for (int i = 0; i < FRAMES; i++)
		if (f->frame[i].stack == stack)
			at = i;
	if (at >= FRAMES)
		return 0;
	call = f->frame[at];
	f->frame[at].stack = 0;
	if (call.kind >= KIND_INJECTED)
		return 0;
	op = call.kind == KIND_EVICT ? OP_EVICT : call.value ? OP_UPDATE : OP_DELETE;
	report(ctx, call.kind, op, true, call_failed(call.kind, result), call.map_id,
	       (void *)call.key, (void *)call.value);
	return 0;
}

/* ---- bpf(2): the system call itself, at its return ---- */

SEC("kretprobe")
int BPF_KRETPROBE(kretprobe_syscall, long result)
{
	/* First: meanwhile, a kprobe misses the write of a packet that arrives. */
	if (current_process() == own_process)
		return 0;
	return report_call(ctx, task_registers(), result);
}

/* Runs at the end of every system call on the host. */
SEC("tp_btf/sys_exit")
int BPF_PROG(tracepoint_syscall, struct pt_regs___kernel *regs, long result)
{
	__u32 number = DIRECT_CALL_NUMBER(regs);

	if (number != NR_BPF && number != NR_BPF_COMPAT)
		return 0;
	if (current_process() == own_process)
		return 0;
	return report_call(ctx, regs, result);
}
