/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The kernel's types, as far as the tracer reads them, and the addresses of a socket. */
#ifndef MAPSYNC_EXAMPLES_SOCKET_H
#define MAPSYNC_EXAMPLES_SOCKET_H

#include <linux/types.h>
#include <linux/bpf.h>
#include <linux/in6.h>
#include <stdbool.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>

#define AF_INET 2
#define AF_INET6 10

#if defined(__TARGET_ARCH_arm64)
/* Declared here, because the headers of the build machine may be those of x86-64. */
struct user_pt_regs {
	__u64 regs[31];
	__u64 sp;
	__u64 pc;
	__u64 pstate;
};
#endif

struct ns_common {
	unsigned int inum;
} __attribute__((preserve_access_index));

struct net {
	struct ns_common ns;
} __attribute__((preserve_access_index));

typedef struct {
	struct net *net;
} __attribute__((preserve_access_index)) possible_net_t;

struct sock_common {
	__be32 skc_daddr;
	__be32 skc_rcv_saddr;
	__be16 skc_dport;
	__u16 skc_num;
	unsigned short skc_family;
	possible_net_t skc_net;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
} __attribute__((preserve_access_index));

struct sock {
	struct sock_common __sk_common;
	__u16 sk_protocol;
} __attribute__((preserve_access_index));

struct inet_sock {
	__be16 inet_sport;
} __attribute__((preserve_access_index));

/* The two ends of a socket. Addresses are in network byte order, ports in host order. */
struct ends {
	__be32 local, remote;
	__u16 local_port, remote_port;
	__u8 protocol;
};

/* The programs of tracepoints read kernel memory directly, and those of kprobes by a helper. */
#define READ(trusted, sk, member) ((trusted) ? (sk)->member : BPF_CORE_READ(sk, member))

/* in_namespace reports whether a socket belongs to a network namespace. */
static __always_inline bool in_namespace(const struct sock *sk, bool trusted, __u32 inum)
{
	if (trusted)
		return sk->__sk_common.skc_net.net->ns.inum == inum;
	return BPF_CORE_READ(sk, __sk_common.skc_net.net, ns.inum) == inum;
}

/* is_ipv4 reports whether a socket has IPv4 addresses. One of a service that listens for IPv6, too,
 * has them in the mapped form, and at the places of IPv4 addresses as well. */
static __always_inline bool is_ipv4(const struct sock *sk, bool trusted)
{
	__u16 family = READ(trusted, sk, __sk_common.skc_family);
	struct in6_addr remote;

	if (family != AF_INET6)
		return family == AF_INET;
	BPF_CORE_READ_INTO(&remote, sk, __sk_common.skc_v6_daddr);
	return !remote.s6_addr32[0] && !remote.s6_addr32[1] &&
	       remote.s6_addr32[2] == bpf_htonl(0xffff);
}

static __always_inline void read_ends(struct ends *e, const struct sock *sk, bool trusted)
{
	e->local = READ(trusted, sk, __sk_common.skc_rcv_saddr);
	e->remote = READ(trusted, sk, __sk_common.skc_daddr);
	e->local_port = READ(trusted, sk, __sk_common.skc_num);
	e->remote_port = bpf_ntohs(READ(trusted, sk, __sk_common.skc_dport));
}

#endif
