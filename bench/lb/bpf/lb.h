/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
#ifndef MAPSYNC_BENCH_LB_H
#define MAPSYNC_BENCH_LB_H

#include <linux/types.h>

/* Declares the role of a field in the type: see docs/schema.md. */
#define ROLE(role) __attribute__((btf_decl_tag("mapsync:" role)))

/* One direction of one flow. Addresses and ports are in network byte order. An
 * IPv4 address is in word 0, and the other words are zero. Unused bytes are
 * zero, because the whole struct is hashed. */
struct ct_key {
	__be32 saddr[4] ROLE("ipv6");
	__be32 daddr[4] ROLE("ipv6");
	__be16 sport ROLE("port");
	__be16 dport ROLE("port");
	__u16 zone;
	__u8 proto;  /* IPPROTO_TCP */
	__u8 family; /* AF_INET or AF_INET6 */
	__u32 ident; /* virtual network of the flow, 0 for the only one */
	__u32 pad;
};

/* The addresses and ports that replace those of a packet of this direction. */
struct ct_nat {
	__be32 saddr[4] ROLE("ipv6");
	__be32 daddr[4] ROLE("ipv6");
	__be16 sport ROLE("port");
	__be16 dport ROLE("port");
	__u32 flags; /* CT_NAT_* */
};

enum {
	CT_NAT_SRC = 1,
	CT_NAT_DST = 2,
};

/* The last TCP state of one direction of the connection. */
struct ct_tcp {
	__u32 seq ROLE("volatile");    /* first sequence number not yet sent, host order */
	__u32 ack ROLE("volatile");    /* host order */
	__u32 fin_seq;		       /* sequence number after the FIN, valid with CT_TCP_FIN */
	__u16 window ROLE("volatile"); /* unscaled, host order */
	__u16 flags;		       /* CT_TCP_* */
};

enum {
	CT_TCP_SYN = 1,
	CT_TCP_FIN = 2,
	CT_TCP_FIN_ACKED = 4,
	CT_TCP_RST = 8,
};

enum ct_state {
	CT_NONE,
	CT_SYN_SENT,
	CT_SYN_RECV,
	CT_ESTABLISHED,
	CT_CLOSING,
	CT_CLOSED,
};

enum ct_direction {
	CT_ORIGINAL,
	CT_REPLY,
};

#ifndef CT_NEXT
struct ct_value {
	__u64 last_used ROLE("ktime,volatile");
	__u64 created ROLE("ktime");
	__u64 packets ROLE("volatile"); /* of this direction */
	__u64 bytes ROLE("volatile");
	struct ct_nat nat;
	struct ct_tcp tcp[2]; /* by enum ct_direction */
	__u32 idle_timeout;   /* seconds */
	__u32 backend_id;
	__u8 state;	/* enum ct_state */
	__u8 direction; /* enum ct_direction */
	__u16 vip_id;
	__u32 pad;
	__u8 reserved[56];
};

_Static_assert(sizeof(struct ct_value) == 176, "a value is 176 bytes");
#else
/* The next release's layout: the counters have moved, three numbers are wider, two
 * fields are new, and the struct is smaller. */
struct ct_value {
	__u64 last_used ROLE("ktime,volatile");
	__u64 created ROLE("ktime");
	struct ct_nat nat;
	struct ct_tcp tcp[2];
	__u64 idle_timeout;
	__u64 packets ROLE("volatile");
	__u64 bytes ROLE("volatile");
	__u32 backend_id;
	__u32 state;
	__u32 vip_id;
	__u8 direction;
	__u8 reserved[15];
	__u32 mark; /* random, the same in both directions; 0: created without a mark */
	__u64 rx_time ROLE("ktime,volatile"); /* last segment with data, SYN or FIN */
};

_Static_assert(sizeof(struct ct_value) == 152, "a value is 152 bytes");
#endif

_Static_assert(sizeof(struct ct_key) == 48, "a key is 48 bytes");

struct vip_key {
	__be32 addr;
	__be16 port;
	__u8 proto;
	__u8 pad;
};

/* A service has the backends first .. first+count-1 of the backend array. */
struct vip_value {
	__u32 first;
	__u32 count;
	__u32 id;
};

struct backend {
	__be32 addr;
	__be16 port;
	__u16 pad;
	__u32 id;
};

enum lb_stat {
	STAT_FORWARDED,	 /* packets rewritten and forwarded */
	STAT_NEW,	 /* flows created */
	STAT_CLOSED,	 /* flows deleted because they closed */
	STAT_NO_ENTRY,	 /* TCP packets to a service, not SYN, without an entry */
	STAT_FULL,	 /* SYNs dropped: no room for the flow */
	STAT_NO_BACKEND, /* SYNs dropped: no usable backend */
	STAT_MAX,
};

#endif
