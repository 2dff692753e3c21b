//go:build ignore

// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* The control of the throughput measurement: a program at layer 2 that parses each packet that
 * leaves and writes a map several times. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define MAX_UPDATES 64

/* Writes of the map for each packet. At most MAX_UPDATES. */
const volatile __u32 updates = 8;

struct flow_key {
	__be32 saddr;
	__be32 daddr;
	__be16 sport;
	__be16 dport;
	__u32 number; /* of the write */
};

struct flow_value {
	__u64 bytes;
	__u64 time; /* ns of bpf_ktime_get_ns */
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__type(key, struct flow_key);
	__type(value, struct flow_value);
	__uint(max_entries, 4096);
} flows SEC(".maps");

SEC("tc")
int layer2(struct __sk_buff *skb)
{
	struct {
		struct ethhdr eth;
		struct iphdr ip;
		struct tcphdr tcp;
	} __attribute__((packed)) packet;
	struct flow_key key = {};
	struct flow_value value = { .bytes = skb->len };

	if (bpf_skb_load_bytes(skb, 0, &packet, sizeof(packet)) ||
	    packet.eth.h_proto != bpf_htons(ETH_P_IP) || packet.ip.protocol != IPPROTO_TCP)
		return TC_ACT_OK;
	key.saddr = packet.ip.saddr;
	key.daddr = packet.ip.daddr;
	key.sport = packet.tcp.source;
	key.dport = packet.tcp.dest;
	for (__u32 i = 0; i < MAX_UPDATES; i++) {
		if (i >= updates)
			break;
		key.number = i;
		value.time = bpf_ktime_get_ns();
		bpf_map_update_elem(&flows, &key, &value, BPF_ANY);
	}
	return TC_ACT_OK;
}
