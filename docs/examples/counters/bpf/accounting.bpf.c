//go:build ignore

// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Bytes that TCP sends, by program and destination service. One of three hooks is attached:
 *
 * fexit       arguments and result of tcp_sendmsg in one call
 * kprobe      a probe at the entry that keeps the socket, and one at the return with the result
 * tracepoint  sock_send_length, from 6.3: for kernels that allow neither of the others
 *
 * All three count the result, not the size argument: a socket that does not block sends less than
 * the size, or nothing.
 */
#include <stdbool.h>
#include <stddef.h>
#include <linux/bpf.h>
#include <linux/in.h>
#include <linux/in6.h>
#include <linux/ptrace.h>
#if defined(__TARGET_ARCH_arm64)
/* Declared here, because the headers of the build machine may be those of x86-64. */
struct user_pt_regs {
	__u64 regs[31];
	__u64 sp;
	__u64 pc;
	__u64 pstate;
};
#endif
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "accounting.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define AF_INET 2
#define AF_INET6 10
#define MAX_SERVICES 65536
#define MAX_CALLS 65536

struct msghdr;

struct sock_common {
	__be32 skc_daddr;
	__be32 skc_rcv_saddr;
	__be16 skc_dport;
	__u16 skc_num;
	unsigned short skc_family;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
} __attribute__((preserve_access_index));

struct sock {
	struct sock_common __sk_common;
	__u16 sk_protocol;
} __attribute__((preserve_access_index));

/* Destinations outside this network are not counted. All zero: every destination counts. */
const volatile __be32 network[4];
const volatile __be32 network_mask[4];

/* The lowest local port of a client. A socket with a lower one is that of a server. */
const volatile __u16 first_client_port = 32768;

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, struct service_key);
	__type(value, struct service_value);
	__uint(max_entries, MAX_SERVICES);
} services SEC(".maps");

/* The sockets of the calls in progress, by thread. Only the kprobe uses it. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, __u64);
	__type(value, __u64);
	__uint(max_entries, MAX_CALLS);
} running_calls SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct missed);
	__uint(max_entries, 1);
} missed_sums SEC(".maps");

static __always_inline void add_missed(__u64 bytes, __u64 calls)
{
	__u32 zero = 0;
	struct missed *m = bpf_map_lookup_elem(&missed_sums, &zero);

	if (!m)
		return;
	/* The compiler makes an atomic "or" of adding 0. Kernels before 5.12 do not have it. */
	if (bytes)
		__sync_fetch_and_add(&m->bytes, bytes);
	if (calls)
		__sync_fetch_and_add(&m->calls, calls);
}

/* unmap makes an IPv4 address of one that is mapped to IPv6, so that a service has one key. */
static __always_inline void unmap(__be32 *address)
{
	if (address[0] || address[1] || address[2] != bpf_htonl(0xffff))
		return;
	address[0] = address[3];
	address[2] = address[3] = 0;
}

/* set_addresses returns false if the socket is of another family. */
static __always_inline bool set_addresses(struct service_key *key, struct sock *sk)
{
	switch (BPF_CORE_READ(sk, __sk_common.skc_family)) {
	case AF_INET:
		key->saddr[0] = BPF_CORE_READ(sk, __sk_common.skc_rcv_saddr);
		key->daddr[0] = BPF_CORE_READ(sk, __sk_common.skc_daddr);
		return true;
	case AF_INET6:
		BPF_CORE_READ_INTO(&key->saddr, sk, __sk_common.skc_v6_rcv_saddr);
		BPF_CORE_READ_INTO(&key->daddr, sk, __sk_common.skc_v6_daddr);
		unmap(key->saddr);
		unmap(key->daddr);
		return true;
	}
	return false;
}

static __always_inline bool in_network(const __be32 *address)
{
	for (int i = 0; i < 4; i++)
		if ((address[i] & network_mask[i]) != network[i])
			return false;
	return true;
}

/* add adds a call to the entry of a key, or inserts the entry with it. */
static __always_inline void add(const struct service_key *key, __u64 sent)
{
	struct service_value first = { .bytes = sent, .calls = 1 };
	struct service_value *value = bpf_map_lookup_elem(&services, key);

	if (!value) {
		if (!bpf_map_update_elem(&services, key, &first, BPF_NOEXIST))
			return;
		/* Another CPU has inserted the key first, or the map is full. */
		value = bpf_map_lookup_elem(&services, key);
	}
	if (!value) {
		add_missed(sent, 0);
		return;
	}
	__sync_fetch_and_add(&value->bytes, sent);
	__sync_fetch_and_add(&value->calls, 1);
}

static __always_inline int count(struct sock *sk, int sent)
{
	struct service_key key = {};

	if (sent <= 0 || !set_addresses(&key, sk) || !in_network(key.daddr))
		return 0;
	if (BPF_CORE_READ(sk, __sk_common.skc_num) >= first_client_port)
		key.dport = BPF_CORE_READ(sk, __sk_common.skc_dport);
	bpf_get_current_comm(key.comm, sizeof(key.comm));
	add(&key, sent);
	return 0;
}

SEC("fexit/tcp_sendmsg")
int BPF_PROG(fexit_tcp_sendmsg, struct sock *sk, struct msghdr *msg, size_t size, int sent)
{
	return count(sk, sent);
}

SEC("kprobe/tcp_sendmsg")
int BPF_KPROBE(kprobe_tcp_sendmsg, struct sock *sk)
{
	__u64 thread = bpf_get_current_pid_tgid(), address = (__u64)sk;

	if (bpf_map_update_elem(&running_calls, &thread, &address, BPF_ANY))
		add_missed(0, 1);
	return 0;
}

SEC("kretprobe/tcp_sendmsg")
int BPF_KRETPROBE(kretprobe_tcp_sendmsg, int sent)
{
	__u64 thread = bpf_get_current_pid_tgid();
	__u64 *address = bpf_map_lookup_elem(&running_calls, &thread);
	struct sock *sk;

	if (!address)
		return 0;
	sk = (struct sock *)*address;
	bpf_map_delete_elem(&running_calls, &thread);
	return count(sk, sent);
}

SEC("tp_btf/sock_send_length")
int BPF_PROG(trace_sock_send_length, struct sock *sk, int sent, int flags)
{
	if (BPF_CORE_READ(sk, sk_protocol) != IPPROTO_TCP)
		return 0;
	return count(sk, sent);
}
