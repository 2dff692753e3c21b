/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
#ifndef MAPSYNC_EXAMPLES_TURN_H
#define MAPSYNC_EXAMPLES_TURN_H

#include <linux/types.h>

/* Declares the role of a field in the type: see docs/schema.md. */
#define ROLE(role) __attribute__((btf_decl_tag("mapsync:" role)))

/* The 5-tuple of the packets from a client or a peer to the server. Addresses and
 * ports are in network byte order. */
struct turn_flow {
	__be32 saddr ROLE("ipv4");
	__be32 daddr ROLE("ipv4");
	__be16 sport ROLE("port");
	__be16 dport ROLE("port");
	__u16 proto;   /* IPPROTO_UDP */
	__u16 channel; /* number of the channel, 0 in the 5-tuple of a peer and of an allocation */
};

/* One direction of a channel: the flow whose sender receives the data. */
struct turn_channel {
	__u64 expires ROLE("ktime"); /* the offload does not use the channel after this time */
	struct turn_flow to;
};

/* The data of a channel without headers, counted by the offload only. */
struct turn_counters {
	__u64 up_packets; /* from the client to the peer */
	__u64 up_bytes;
	__u64 down_packets; /* from the peer to the client */
	__u64 down_bytes;
};

/* What a server needs to rebuild an allocation, besides its channels and permissions. */
struct turn_allocation {
	__u64 expires ROLE("ktime");
	__be32 relay_addr ROLE("ipv4");
	__be16 relay_port ROLE("port");
	__u16 pad;
	__u8 username[64]; /* ends with zeros */
};

struct turn_permission_key {
	struct turn_flow client;
	__be32 peer ROLE("ipv4");
};

struct turn_permission {
	__u64 expires ROLE("ktime");
};

#endif
