/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
#ifndef MAPSYNC_EXAMPLES_FLOW_H
#define MAPSYNC_EXAMPLES_FLOW_H

#include <linux/types.h>

/* Declares the role of a field in the type: see docs/schema.md. */
#define ROLE(role) __attribute__((btf_decl_tag("mapsync:" role)))

enum {
	OUTGOING = 1, /* the node has the client */
	INCOMING = 2, /* the node has the service */
};

/* All connections of a client address with a service. */
struct flow_key {
	__be32 from ROLE("ipv4"); /* the client */
	__be32 to ROLE("ipv4");	  /* the service */
	__u16 port;		  /* on which the service listens, host order */
	__u8 dir;		  /* OUTGOING or INCOMING */
	__u8 proto;		  /* IPPROTO_TCP or IPPROTO_UDP */
};

/* One connection. The methods that do not bundle use it as their key. The unused bytes are zero. */
struct connection_key {
	struct flow_key flow;
	__u16 client_port; /* host order */
	__u16 unused;
};

/* The counters of a flow, or of one connection. */
struct flow {
	__u64 connections; /* established; 0 for UDP */
	__u64 messages;	   /* sent */
	__u64 sent;	   /* bytes */
	__u64 received;	   /* bytes */
};

/* A connection has ended: the event of the method "stream". */
struct connection_end {
	struct connection_key key;
	struct flow flow;
};

/* A port on which a service listens. */
struct listener {
	__u16 port; /* host order */
	__u8 protocol;
	__u8 unused;
};

#endif
