//go:build ignore

// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * A tracer of connections that bundles them in the kernel: a flow is a client address, a service,
 * and a direction. User space drains the flows by batch lookup-and-delete.
 */
#include "count.h"

#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ptrace.h>
#include <linux/udp.h>
#include <bpf/bpf_tracing.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define TCP_ESTABLISHED 1
#define TCP_SYN_RECV 3
#define TCP_CLOSE 7
#define TCP_LISTEN 10
#define MSG_PEEK 2

struct sk_buff {
	struct sock *sk;
	unsigned char *head;
	__u16 transport_header, network_header;
} __attribute__((preserve_access_index));

struct sockaddr_in_head {
	__u16 family;
	__be16 port;
};

/* ---- connections: a tracepoint, with both kinds of hooks ---- */

SEC("tp_btf/inet_sock_set_state")
int BPF_PROG(socket_state, struct sock *sk, int from, int to)
{
	struct ends e = { .protocol = IPPROTO_TCP };
	bool accepted = from == TCP_SYN_RECV;

	if (to != TCP_ESTABLISHED && to != TCP_LISTEN && to != TCP_CLOSE)
		return 0;
	if (sk->sk_protocol != IPPROTO_TCP || !in_namespace(sk, true, netns))
		return 0;
	read_ends(&e, sk, true);
	if (to == TCP_LISTEN || from == TCP_LISTEN) {
		count_listener(e.local_port, e.protocol, to == TCP_LISTEN ? 1 : -1);
		return 0;
	}
	if (!is_ipv4(sk, true))
		return 0;
	if (to == TCP_ESTABLISHED)
		count(&e, accepted ? INCOMING : OUTGOING, (struct flow){ .connections = 1 });
	if (stream && to == TCP_CLOSE) {
		/* The kernel has given up the port in skc_num. */
		e.local_port = bpf_ntohs(BPF_CORE_READ((struct inet_sock *)sk, inet_sport));
		end_connection(&e);
	}
	return 0;
}

/* ---- messages, by the tracepoints of kernels from 6.3 ---- */

static __always_inline int count_length(const struct sock *sk, bool sent, int length)
{
	struct ends e = {};
	struct flow f = {};

	if (length <= 0 || !in_namespace(sk, true, netns) || !is_ipv4(sk, true))
		return 0;
	e.protocol = sk->sk_protocol;
	read_ends(&e, sk, true);
	/* An UDP socket without a peer has no address here. */
	if ((e.protocol != IPPROTO_TCP && e.protocol != IPPROTO_UDP) || !e.remote)
		return 0;
	f.messages = sent;
	*(sent ? &f.sent : &f.received) = length;
	count(&e, direction(&e), f);
	return 0;
}

SEC("tp_btf/sock_send_length")
int BPF_PROG(sent_length, struct sock *sk, int length, int flags)
{
	return count_length(sk, true, length);
}

SEC("tp_btf/sock_recv_length")
int BPF_PROG(received_length, struct sock *sk, int length, int flags)
{
	return flags & MSG_PEEK ? 0 : count_length(sk, false, length);
}

/* ---- messages, by kprobes ---- */

static __always_inline int count_tcp(const struct sock *sk, struct flow f)
{
	struct ends e = { .protocol = IPPROTO_TCP };

	if (!in_namespace(sk, false, netns) || !is_ipv4(sk, false))
		return 0;
	read_ends(&e, sk, false);
	count(&e, direction(&e), f);
	return 0;
}

SEC("kprobe/tcp_sendmsg")
int BPF_KPROBE(tcp_sendmsg, struct sock *sk, void *message, __u64 size)
{
	return count_tcp(sk, (struct flow){ .messages = 1, .sent = size });
}

SEC("kprobe/tcp_cleanup_rbuf")
int BPF_KPROBE(tcp_cleanup_rbuf, struct sock *sk, int copied)
{
	return copied > 0 ? count_tcp(sk, (struct flow){ .received = copied }) : 0;
}

/* count_udp counts a datagram by its headers, because a UDP socket may have no peer. */
static __always_inline int count_udp(const struct sk_buff *skb, const struct sock *sk, bool sent)
{
	unsigned char *head = BPF_CORE_READ(skb, head);
	struct ends e = { .protocol = IPPROTO_UDP };
	struct iphdr ip = {};
	struct udphdr udp = {};
	struct flow f = {};

	if (!sk || !in_namespace(sk, false, netns))
		return 0;
	bpf_probe_read_kernel(&ip, sizeof(ip), head + BPF_CORE_READ(skb, network_header));
	bpf_probe_read_kernel(&udp, sizeof(udp), head + BPF_CORE_READ(skb, transport_header));
	if (ip.version != 4 || ip.protocol != IPPROTO_UDP)
		return 0;
	e.local = sent ? ip.saddr : ip.daddr;
	e.remote = sent ? ip.daddr : ip.saddr;
	e.local_port = bpf_ntohs(sent ? udp.source : udp.dest);
	e.remote_port = bpf_ntohs(sent ? udp.dest : udp.source);
	f.messages = sent;
	*(sent ? &f.sent : &f.received) = bpf_ntohs(udp.len) - sizeof(udp);
	count(&e, direction(&e), f);
	return 0;
}

SEC("kprobe/ip_send_skb")
int BPF_KPROBE(ip_send_skb, void *net, struct sk_buff *skb)
{
	return count_udp(skb, BPF_CORE_READ(skb, sk), true);
}

SEC("kprobe/skb_consume_udp")
int BPF_KPROBE(skb_consume_udp, struct sock *sk, struct sk_buff *skb)
{
	return count_udp(skb, sk, false);
}

/* A service of UDP has bound a port of its choice. */
SEC("kprobe/__inet_bind")
int BPF_KPROBE(inet_bind, struct sock *sk, void *address)
{
	struct sockaddr_in_head a = {};

	if (READ(false, sk, sk_protocol) != IPPROTO_UDP || !in_namespace(sk, false, netns))
		return 0;
	bpf_probe_read_kernel(&a, sizeof(a), address);
	if (a.port)
		count_listener(bpf_ntohs(a.port), IPPROTO_UDP, 1);
	return 0;
}

/* ---- for user space ---- */

struct bpf_map;

/* move adds an entry of the spare map to the flows, and removes it. */
static long move(struct bpf_map *map, const void *key, const struct flow *f, void *context)
{
	struct connection_key k = {};

	__builtin_memcpy(&k, key, sizeof(k.flow));
	if (per_connection)
		k.client_port = ((const struct connection_key *)key)->client_port;
	if (add(&flows, &k, f))
		bpf_map_delete_elem(&spare, &k);
	return 0;
}

/* move_spare adds the spare map to the flows, when no program writes it any more. */
SEC("syscall")
int move_spare(void *context)
{
	return bpf_for_each_map_elem(&spare, move, NULL, 0) < 0;
}
