/* SPDX-License-Identifier: (GPL-2.0 OR BSD-2-Clause) */
/*
 * Writes by bpf(2), reported when the system call returns. The keys are read from the caller's
 * memory. They only select the entries that syncd rereads. If another thread changes that memory,
 * or the file descriptor, before the call returns, the next scan finds the write.
 */
#ifndef MAPSYNC_SYSCALL_H
#define MAPSYNC_SYSCALL_H

#include "write_context.h"

#include <linux/errno.h>

struct file {
	void *private_data;
} __attribute__((preserve_access_index));

struct fdtable {
	unsigned int max_fds;
	struct file **fd;
} __attribute__((preserve_access_index));

struct files_struct {
	struct fdtable *fdt;
} __attribute__((preserve_access_index));

/* The maximum number of events for one call, and the bytes of keys in one event. syncd scans if a
 * call has more keys. */
#define MAX_KEY_EVENTS 256
#define EVENT_KEYS_BYTES 4096

/* The bytes before the keys: their number, and the caller. */
#define CALL_HEAD (8 + sizeof(struct caller))

/* The kernel's error for an operation that a map does not support. */
#define ENOTSUPP 524

/* The beginning of union bpf_attr for commands on one entry, and for batches. The attributes of a
 * delete may end after the key. */
struct entry_attr {
	__u32 map_fd;
	__u32 unused;
	__u64 key;
	__u64 value;
};

#define DELETE_ATTR_BYTES 16

struct batch_attr {
	__u64 in_batch;
	__u64 out_batch;
	__u64 keys;
	__u64 values;
	__u32 count; /* the kernel writes the number of processed entries here */
	__u32 map_fd;
};

/* call is a bpf(2) call that has returned. */
struct call {
	__u32 command;
	__u32 map_fd;
	const void *attr;   /* user memory */
	const void *keys;   /* user memory */
	const void *values; /* user memory */
	__u32 count;
};

static __always_inline bool deletes(__u32 command)
{
	return command == BPF_MAP_DELETE_ELEM || command == BPF_MAP_DELETE_BATCH ||
	       command == BPF_MAP_LOOKUP_AND_DELETE_ELEM ||
	       command == BPF_MAP_LOOKUP_AND_DELETE_BATCH;
}

static __always_inline bool is_batch(__u32 command)
{
	return command == BPF_MAP_LOOKUP_AND_DELETE_BATCH || command == BPF_MAP_UPDATE_BATCH ||
	       command == BPF_MAP_DELETE_BATCH;
}

/* read_attributes sets map_fd, keys, values and count of a call. It returns false if the memory
 * cannot be read. */
static __always_inline bool read_attributes(struct call *c)
{
	struct entry_attr one = {};
	struct batch_attr batch = {};

	if (is_batch(c->command)) {
		if (bpf_probe_read_user(&batch, sizeof(batch), c->attr))
			return false;
		c->map_fd = batch.map_fd;
		c->keys = (void *)batch.keys;
		c->values = (void *)batch.values;
		c->count = batch.count;
		return true;
	}
	if (c->command == BPF_MAP_DELETE_ELEM) {
		if (bpf_probe_read_user(&one, DELETE_ATTR_BYTES, c->attr))
			return false;
	} else if (bpf_probe_read_user(&one, sizeof(one), c->attr)) {
		return false;
	}
	c->map_fd = one.map_fd;
	c->keys = (void *)one.key;
	c->values = (void *)one.value;
	c->count = 1;
	return true;
}

/* map_of_fd returns the id of the map with a file descriptor of the task, 0 if the file is closed.
 * A call that has found no map there is not reported. */
static __always_inline __u32 map_of_fd(struct task_struct *task, __u32 fd)
{
	struct fdtable *table = BPF_CORE_READ(task, files, fdt);
	struct file **files = BPF_CORE_READ(table, fd), *file = NULL;
	struct bpf_map *map;

	if (fd >= BPF_CORE_READ(table, max_fds))
		return 0;
	bpf_probe_read_kernel(&file, sizeof(file), files + fd);
	map = BPF_CORE_READ(file, private_data);
	return BPF_CORE_READ(map, id);
}

/* emit_some_keys sends n keys in one event. It returns false if the event is lost. */
static __always_inline bool emit_some_keys(void *ctx, struct slot *s, __u32 slot, __u32 id,
					   enum op op, const void *keys, __u64 n, __u64 bytes)
{
	__u64 len;

	begin_event(s, slot, id, op, CTX_SYSCALL);
	*(__u64 *)s->data = n;
	BOUND(bytes, EVENT_KEYS_BYTES);
	if (bpf_probe_read_user(s->data + CALL_HEAD, bytes, keys))
		goto lost;
	set_caller((void *)(s->data + 8));
	len = sizeof(s->event) + CALL_HEAD + bytes;
	BOUND(len, sizeof(s->event) + CALL_HEAD + EVENT_KEYS_BYTES);
	if (!output(ctx, &s->event, len))
		return true;
lost:
	s->lost++;
	return false;
}

/* emit_keys sends the keys of a call to user space, in several events if needed. It ends at the
 * first lost one, because syncd scans then. */
static __always_inline void emit_keys(void *ctx, struct slot *s, __u32 slot, __u32 id,
				      const struct watch *w, const struct call *c)
{
	__u64 key_size = READ_SIZE(w->key_size), most, rest, bytes;
	enum op op = deletes(c->command) ? OP_DELETED_KEYS : OP_KEYS;
	const void *keys = c->keys;
	__u32 full;

	if (!key_size || key_size > MAX_KEY)
		goto lost;
	most = EVENT_KEYS_BYTES / key_size;
	full = c->count / most;
	rest = c->count % most;
	bytes = most * key_size;
	for (int i = 0; i < MAX_KEY_EVENTS && full; i++, full--, keys += bytes)
		if (!emit_some_keys(ctx, s, slot, id, op, keys, most, bytes))
			return;
	if (full)
		goto lost;
	if (rest)
		emit_some_keys(ctx, s, slot, id, op, keys, rest, rest * key_size);
	return;
lost:
	s->seq++;
	s->lost++;
}

/* keys_known returns false if a call has deleted entries whose keys are unknown: a drain that ends
 * with EFAULT has not written their number. Other batches that fail have. */
static __always_inline bool keys_known(const struct call *c, long result)
{
	return c->command != BPF_MAP_LOOKUP_AND_DELETE_BATCH || result != -EFAULT;
}

/* may_have_written returns false for a call that has changed nothing. A batch that fails may have
 * processed some entries, unless the kernel has refused it. A lookup-and-delete deletes the entry
 * before it fails to copy the value. */
static __always_inline bool may_have_written(__u32 command, long result)
{
	switch (result) {
	case 0:
		return true;
	case -EBADF:
	case -EINVAL:
	case -EPERM:
	case -ENOTSUPP:
		return false;
	case -EFAULT:
		return is_batch(command) || command == BPF_MAP_LOOKUP_AND_DELETE_ELEM;
	}
	return is_batch(command);
}

/* report_keys reports the keys of a call. It counts a loss if the keys or the map are unknown. */
static __always_inline void report_keys(void *ctx, __u32 kind, __u32 id, const struct watch *w,
					const struct call *c, bool known)
{
	struct slot *s, *base;
	__u32 level;

	if (known && !c->count)
		return;
	s = enter(kind, &base, &level);
	if (!s)
		return;
	s->seen++;
	if (known && w) {
		emit_keys(ctx, s, kind * LEVELS + level, id, w, c);
	} else {
		s->seq++;
		s->lost++;
	}
	leave(base);
}

/* report_call reports the keys that a bpf(2) call of the current task may have changed. The caller
 * leaves out the calls of syncd. */
static __always_inline int report_call(void *ctx, struct pt_regs___kernel *regs, long result)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	bool compat = in_compat_call(task), known;
	struct watch *w = NULL;
	struct call c = {};
	__u32 id = 0;

	if (!in_bpf_call(regs, compat))
		return 0;
	c.command = call_argument(regs, 0, compat);
	if (!writes_a_map(c.command) || !may_have_written(c.command, result))
		return 0;
	c.attr = (void *)call_argument(regs, 1, compat);
	known = read_attributes(&c);
	if (known) {
		id = map_of_fd(task, c.map_fd);
		w = id ? watch_of(id) : NULL;
		known = keys_known(&c, result);
	}
	/* Anyone can make a call that fails. Only a call that succeeds counts as a loss without a
	 * map. */
	if (!w && (id || result))
		return 0;
	report_keys(ctx, KIND_SYSCALL, id, w, &c, known);
	return 0;
}

/* report_drain reports the keys of a batch lookup-and-delete. attr is the kernel's copy of the
 * attributes, uattr the caller's, to which the kernel has written the number of deleted entries. */
static __always_inline void report_drain(void *ctx, __u32 kind, __u32 id,
					 const struct batch_attr *attr,
					 const struct batch_attr *uattr, int result)
{
	struct call c = { .command = BPF_MAP_LOOKUP_AND_DELETE_BATCH };
	bool known = keys_known(&c, result);

	if (!may_have_written(c.command, result))
		return;
	bpf_probe_read_kernel(&c.keys, sizeof(c.keys), &attr->keys);
	if (known && bpf_probe_read_user(&c.count, sizeof(c.count), &uattr->count))
		known = false;
	report_keys(ctx, kind, id, watch_of(id), &c, known);
}

#endif
