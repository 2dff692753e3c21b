/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The maps of the tracer, and how its programs count. */
#ifndef MAPSYNC_EXAMPLES_COUNT_H
#define MAPSYNC_EXAMPLES_COUNT_H

#include "flow.h"
#include "socket.h"

const volatile __u32 netns = 0;		    /* inode number of the network namespace to trace */
const volatile bool per_connection = false; /* the key is a connection, not a flow */
const volatile bool stream = false;	    /* send an event at the end of a connection */

/* The flows. Programs write the map that is in `active`: while user space drains the flows, the
 * spare map. A drain would lose what a program adds to an entry that the drain has just copied. */
struct flows_map {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, struct flow_key);
	__type(value, struct flow);
	__uint(max_entries, 16384);
} flows SEC(".maps"), spare SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__type(key, __u32);
	__uint(max_entries, 1);
	__array(values, struct flows_map);
} active SEC(".maps") = { .values = { &flows } };

/* The number of sockets that listen on a port. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, struct listener);
	__type(value, __u64);
	__uint(max_entries, 65536);
} listeners SEC(".maps");

/* The number of changes that did not go into a map. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, 1);
} lost SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 22);
} closed SEC(".maps");

static __always_inline void count_lost(void)
{
	__u32 first = 0;
	__u64 *n = bpf_map_lookup_elem(&lost, &first);

	if (n)
		__sync_fetch_and_add(n, 1);
}

/* add adds to the counters of a key. It returns false if the map has no room. */
static __always_inline bool add(void *map, const struct connection_key *key,
				const struct flow *more)
{
	struct flow zero = {}, *f = bpf_map_lookup_elem(map, key);

	if (!f) {
		bpf_map_update_elem(map, key, &zero, BPF_NOEXIST);
		f = bpf_map_lookup_elem(map, key);
		if (!f)
			return false;
	}
	if (more->connections)
		__sync_fetch_and_add(&f->connections, more->connections);
	if (more->messages)
		__sync_fetch_and_add(&f->messages, more->messages);
	if (more->sent)
		__sync_fetch_and_add(&f->sent, more->sent);
	if (more->received)
		__sync_fetch_and_add(&f->received, more->received);
	return true;
}

static __always_inline void count_listener(__u16 port, __u8 protocol, __s64 change)
{
	struct listener l = { .port = port, .protocol = protocol };
	__u64 zero = 0, *n = bpf_map_lookup_elem(&listeners, &l);

	if (!n) {
		bpf_map_update_elem(&listeners, &l, &zero, BPF_NOEXIST);
		n = bpf_map_lookup_elem(&listeners, &l);
	}
	if (n)
		__sync_fetch_and_add(n, change);
	else
		count_lost();
}

/* direction returns INCOMING if a service listens on the local port. */
static __always_inline __u8 direction(const struct ends *e)
{
	struct listener l = { .port = e->local_port, .protocol = e->protocol };
	__s64 *n = bpf_map_lookup_elem(&listeners, &l);

	return n && *n > 0 ? INCOMING : OUTGOING;
}

static __always_inline struct connection_key key_of(const struct ends *e, __u8 direction)
{
	bool in = direction == INCOMING;

	return (struct connection_key){
		.flow = {
			.from = in ? e->remote : e->local,
			.to = in ? e->local : e->remote,
			.port = in ? e->local_port : e->remote_port,
			.dir = direction,
			.proto = e->protocol,
		},
		.client_port = !per_connection ? 0 : in ? e->remote_port : e->local_port,
	};
}

/* count adds to the flow of a socket. */
static __always_inline void count(const struct ends *e, __u8 direction, struct flow more)
{
	struct connection_key key = key_of(e, direction);
	__u32 first = 0;
	void *map = bpf_map_lookup_elem(&active, &first);

	if (!map || !add(map, &key, &more))
		count_lost();
}

/* end_connection sends the counters of a connection to user space. */
static __always_inline void end_connection(const struct ends *e)
{
	struct connection_end end = { .key = key_of(e, direction(e)) };
	struct flow *f = bpf_map_lookup_elem(&flows, &end.key);

	if (!f)
		return;
	end.flow = *f;
	/* Without room, user space reads the entry when it ends. */
	if (!bpf_ringbuf_output(&closed, &end, sizeof(end), 0))
		bpf_map_delete_elem(&flows, &end.key);
}

#endif
