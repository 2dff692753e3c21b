//go:build ignore

// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* The offload of a TURN server. It translates the data of channels in both
 * directions and returns each packet to the router that sent it. The server writes
 * the channels. All other packets go to the server: requests, indications, data
 * without a channel, fragments and packets that would become too long. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "turn.h"

#define IP_FRAGMENT 0x3fff /* more fragments, or an offset */
#define SENT_TTL 64
#define MAX_CHANNELS 16384
#define MAX_INTERFACES 64
#define MAX_PADDING 3
#define MAX_DATA 0x7ff /* bytes; a mask for the verifier */
#define CHANNEL_MIN 0x4000
#define CHANNEL_MAX 0x7fff
#define SUM_ZERO (0xffffULL << 32) /* 0 in a checksum, above all other sums */

/* UDP port on which the server receives from clients, in network byte order. */
const volatile __be16 server_port = bpf_htons(3478);

/* The longest IP packet that the offload sends, in bytes. */
const volatile __u16 max_packet = 1500;

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, struct turn_flow); /* of the client, with the channel */
	__type(value, struct turn_channel);
	__uint(max_entries, MAX_CHANNELS);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} turn_upstream SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, struct turn_flow); /* of the peer */
	__type(value, struct turn_channel);
	__uint(max_entries, MAX_CHANNELS);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} turn_downstream SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, struct turn_flow); /* of the client, with the channel */
	__type(value, struct turn_counters);
	__uint(max_entries, MAX_CHANNELS);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} turn_stats SEC(".maps");

/* The offload itself does not use the next two maps. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, struct turn_flow); /* of the client */
	__type(value, struct turn_allocation);
	__uint(max_entries, MAX_CHANNELS);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} turn_allocs SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, struct turn_permission_key);
	__type(value, struct turn_permission);
	__uint(max_entries, MAX_CHANNELS);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} turn_perms SEC(".maps");

/* Interface index and address of the server there. It is local to the node. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, __u32);
	__type(value, __be32);
	__uint(max_entries, MAX_INTERFACES);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} turn_interfaces SEC(".maps");

struct headers {
	struct ethhdr eth;
	struct iphdr ip;
	struct udphdr udp;
} __attribute__((packed, aligned(2)));

struct channel_header {
	__be16 number;
	__be16 length; /* of the data, without padding */
};

/* Returns the headers of an IPv4 UDP packet without options that is not a fragment. */
static __always_inline struct headers *parse(struct xdp_md *ctx)
{
	void *end = (void *)(long)ctx->data_end;
	struct headers *h = (void *)(long)ctx->data;
	__u32 length;

	if ((void *)(h + 1) > end || h->eth.h_proto != bpf_htons(ETH_P_IP))
		return NULL;
	if (h->ip.version != 4 || h->ip.ihl != 5 || h->ip.protocol != IPPROTO_UDP)
		return NULL;
	length = bpf_ntohs(h->ip.tot_len);
	if (h->ip.frag_off & bpf_htons(IP_FRAGMENT) || length > (long)end - (long)&h->ip)
		return NULL;
	if (length < sizeof(h->ip) + sizeof(h->udp) ||
	    bpf_ntohs(h->udp.len) != length - sizeof(h->ip))
		return NULL;
	return h;
}

static __always_inline __u16 fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

/* The sum of the fields of both headers that the UDP checksum includes. */
static __always_inline __u64 sum_of(const struct headers *h)
{
	return (__u64)h->ip.saddr + h->ip.daddr + h->udp.source + h->udp.dest +
	       2 * (__u64)h->udp.len;
}

static __always_inline __u16 ip_checksum(const struct headers *h)
{
	const __u16 *word = (const void *)h + sizeof(h->eth);
	__u64 sum = 0;

	for (int i = 0; i < sizeof(h->ip) / sizeof(*word); i++)
		sum += word[i];
	return ~fold(sum);
}

/* Changes the headers of a packet from a client or a peer, so that it goes from the
 * server to the sender of the flow. length is that of the data of UDP in bytes, and
 * change the difference of the sums of the data. */
static __always_inline void rewrite(struct headers *h, const struct turn_flow *to, __u16 length,
				    __u64 change)
{
	unsigned char mac[ETH_ALEN];
	__u64 before = sum_of(h);

	__builtin_memcpy(mac, h->eth.h_dest, ETH_ALEN);
	__builtin_memcpy(h->eth.h_dest, h->eth.h_source, ETH_ALEN);
	__builtin_memcpy(h->eth.h_source, mac, ETH_ALEN);
	h->ip.saddr = to->daddr;
	h->ip.daddr = to->saddr;
	h->ip.ttl = SENT_TTL;
	h->ip.tot_len = bpf_htons(sizeof(h->ip) + sizeof(h->udp) + length);
	h->ip.check = 0;
	h->ip.check = ip_checksum(h);
	h->udp.source = to->dport;
	h->udp.dest = to->sport;
	h->udp.len = bpf_htons(sizeof(h->udp) + length);
	if (!h->udp.check)
		return; /* the sender has not computed a checksum */
	h->udp.check = ~fold((__u16)~h->udp.check + SUM_ZERO - before + sum_of(h) + change);
	if (!h->udp.check)
		h->udp.check = 0xffff;
}

/* Adds a byte of the padding to the sum. A byte at an odd offset is the upper half of
 * its word. Returns 0 if the byte is within the packet. */
static __always_inline int add_byte(__u64 *sum, const __u8 *byte, const void *end, __u32 offset)
{
	if ((const void *)(byte + 1) > end)
		return -1;
	*sum += (__u64)*byte << (8 * (offset & 1));
	return 0;
}

/* Adds the padding after the data of a channel to the sum. Returns 0 if all of it is
 * within the packet. */
static __always_inline int add_padding(__u64 *sum, const struct channel_header *c, const void *end,
				       __u32 length, __u32 padding)
{
	const __u8 *byte = (const void *)(c + 1);

	byte += length & MAX_DATA;
	if (padding > 0 && add_byte(sum, byte, end, length))
		return -1;
	if (padding > 1 && add_byte(sum, byte + 1, end, length + 1))
		return -1;
	if (padding > 2 && add_byte(sum, byte + 2, end, length + 2))
		return -1;
	return 0;
}

static __always_inline void count(const struct turn_flow *client, int up, __u16 length)
{
	struct turn_counters *s = bpf_map_lookup_elem(&turn_stats, client);

	if (!s)
		return;
	__sync_fetch_and_add(up ? &s->up_packets : &s->down_packets, 1);
	__sync_fetch_and_add(up ? &s->up_bytes : &s->down_bytes, length);
}

/* Returns a copy of the channel: the server may delete the entry at any time. */
static __always_inline int find(void *map, const struct turn_flow *from, struct turn_flow *to)
{
	struct turn_channel *c = bpf_map_lookup_elem(map, from);

	if (!c || c->expires < bpf_ktime_get_ns())
		return -1;
	*to = c->to;
	return 0;
}

/* From a client: removes the header of ChannelData and the padding. */
static __always_inline int upstream(struct xdp_md *ctx, struct headers *h, struct turn_flow *from)
{
	void *end = (void *)(long)ctx->data_end;
	struct channel_header *c = (void *)(h + 1);
	__u32 payload = bpf_ntohs(h->udp.len) - sizeof(h->udp), length, padding;
	__u32 trailer = (long)end - (long)&h->ip - bpf_ntohs(h->ip.tot_len);
	struct headers saved;
	struct turn_flow to;
	__u64 removed;

	if ((void *)(c + 1) > end || payload < sizeof(*c))
		return XDP_PASS;
	from->channel = bpf_ntohs(c->number);
	length = bpf_ntohs(c->length);
	if (from->channel < CHANNEL_MIN || from->channel > CHANNEL_MAX)
		return XDP_PASS;
	padding = payload - sizeof(*c) - length;
	if (length > payload - sizeof(*c) || padding > MAX_PADDING || length > MAX_DATA)
		return XDP_PASS;
	if (find(&turn_upstream, from, &to))
		return XDP_PASS;
	removed = (__u64)c->number + c->length;
	if (add_padding(&removed, c, end, length, padding))
		return XDP_PASS;
	saved = *h;
	rewrite(&saved, &to, length, SUM_ZERO - removed);
	if (bpf_xdp_adjust_head(ctx, sizeof(*c)))
		return XDP_PASS;
	if (padding + trailer && bpf_xdp_adjust_tail(ctx, -(int)(padding + trailer)))
		return XDP_DROP;
	h = (void *)(long)ctx->data;
	if ((void *)(h + 1) > (void *)(long)ctx->data_end)
		return XDP_DROP;
	*h = saved;
	count(from, 1, length);
	return XDP_TX;
}

/* From a peer: adds the header of ChannelData. */
static __always_inline int downstream(struct xdp_md *ctx, struct headers *h, struct turn_flow *from)
{
	__u32 length = bpf_ntohs(h->udp.len) - sizeof(h->udp);
	struct channel_header *c;
	struct headers saved;
	struct turn_flow to;

	if (bpf_ntohs(h->ip.tot_len) + sizeof(*c) > max_packet)
		return XDP_PASS;
	if (find(&turn_downstream, from, &to))
		return XDP_PASS;
	saved = *h;
	rewrite(&saved, &to, length + sizeof(*c), (__u64)bpf_htons(to.channel) + bpf_htons(length));
	if (bpf_xdp_adjust_head(ctx, -(int)sizeof(*c)))
		return XDP_PASS;
	h = (void *)(long)ctx->data;
	c = (void *)(h + 1);
	if ((void *)(c + 1) > (void *)(long)ctx->data_end)
		return XDP_DROP;
	*h = saved;
	c->number = bpf_htons(to.channel);
	c->length = bpf_htons(length);
	count(&to, 0, length);
	return XDP_TX;
}

SEC("xdp")
int turn(struct xdp_md *ctx)
{
	__u32 interface = ctx->ingress_ifindex;
	struct headers *h = parse(ctx);
	struct turn_flow from = { .proto = IPPROTO_UDP };
	__be32 *address;

	if (!h)
		return XDP_PASS;
	address = bpf_map_lookup_elem(&turn_interfaces, &interface);
	if (!address || *address != h->ip.daddr)
		return XDP_PASS;
	from.saddr = h->ip.saddr;
	from.daddr = h->ip.daddr;
	from.sport = h->udp.source;
	from.dport = h->udp.dest;
	return from.dport == server_port ? upstream(ctx, h, &from) : downstream(ctx, h, &from);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
