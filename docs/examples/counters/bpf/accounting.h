/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
#ifndef MAPSYNC_EXAMPLES_ACCOUNTING_H
#define MAPSYNC_EXAMPLES_ACCOUNTING_H

#include <linux/types.h>

/* Declares the role of a field in the type: see docs/schema.md. */
#define ROLE(role) __attribute__((btf_decl_tag("mapsync:" role)))

#define COMM_SIZE 16

/* A service as one program of this host uses it. An IPv4 address is in word 0, and the other words
 * are zero. Unused bytes are zero, because the whole struct is hashed. */
struct service_key {
	__be32 saddr[4] ROLE("ipv6"); /* of this host, so that no two nodes have equal keys */
	__be32 daddr[4] ROLE("ipv6");
	char comm[COMM_SIZE];	   /* name of the thread that sends */
	__be16 dport ROLE("port"); /* 0 if this host is the server of the connection */
	__u16 pad;
};

struct service_value {
	__u64 bytes; /* sent: the sum of the results of tcp_sendmsg */
	__u64 calls; /* that sent at least one byte */
};

/* What one CPU could not count. */
struct missed {
	__u64 bytes; /* services was full */
	__u64 calls; /* running_calls was full: their bytes are not known */
};

#endif
