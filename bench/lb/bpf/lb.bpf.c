//go:build ignore

// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* A layer 4 load balancer on one link. It receives a packet from the router,
 * rewrites the addresses from the connection-tracking entry, and returns the
 * packet to the router. It passes all other packets to the kernel's stack, which
 * answers a segment of an unknown flow with a reset, as for any closed port. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/tcp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "lb.h"
#include "report.h"

#define AF_INET 2
#define IP_FRAGMENT 0x3fff /* more fragments, or an offset */
#define BACKEND_TRIES 4
#define MAX_BACKENDS 1024
#define MAX_VIPS 64

/* Idle timeout of each connection state, in seconds. */
const volatile __u32 timeout_handshake = 30;
const volatile __u32 timeout_established = 1800;
const volatile __u32 timeout_closing = 60;

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, struct ct_key);
	__type(value, struct ct_value);
	__uint(max_entries, 262144);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} ct_map SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, struct vip_key);
	__type(value, struct vip_value);
	__uint(max_entries, MAX_VIPS);
} vips SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct backend);
	__uint(max_entries, MAX_BACKENDS);
} backends SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, STAT_MAX);
} stats SEC(".maps");

struct packet {
	struct ethhdr *eth;
	struct iphdr *ip;
	struct tcphdr *tcp;
	__u32 seq_end; /* sequence number after this segment, host order */
	__u32 len;     /* length of the IP packet, bytes */
};

static __always_inline void count(__u32 which)
{
	__u64 *n = bpf_map_lookup_elem(&stats, &which);

	if (n)
		*n += 1;
}

/* Returns 0 if the packet is a whole IPv4 TCP segment. */
static __always_inline int parse(struct xdp_md *ctx, struct packet *p)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	__u32 header;

	p->eth = data;
	p->ip = (void *)(p->eth + 1);
	if ((void *)(p->ip + 1) > end)
		return -1;
	if (p->eth->h_proto != bpf_htons(ETH_P_IP) || p->ip->version != 4 || p->ip->ihl < 5)
		return -1;
	if (p->ip->protocol != IPPROTO_TCP || p->ip->frag_off & bpf_htons(IP_FRAGMENT))
		return -1;
	header = p->ip->ihl * 4;
	p->tcp = (void *)p->ip + header;
	if ((void *)(p->tcp + 1) > end)
		return -1;
	header += p->tcp->doff * 4;
	p->len = bpf_ntohs(p->ip->tot_len);
	if (p->tcp->doff < 5 || p->len < header)
		return -1;
	p->seq_end = bpf_ntohl(p->tcp->seq) + p->len - header + p->tcp->syn + p->tcp->fin;
	return 0;
}

static __always_inline void make_key(struct ct_key *key, const struct packet *p)
{
	__builtin_memset(key, 0, sizeof(*key));
	key->saddr[0] = p->ip->saddr;
	key->daddr[0] = p->ip->daddr;
	key->sport = p->tcp->source;
	key->dport = p->tcp->dest;
	key->proto = IPPROTO_TCP;
	key->family = AF_INET;
}

/* Sets out to the key of the other direction: the answer to the rewritten packet. */
static __always_inline void reverse_key(struct ct_key *out, const struct ct_key *key,
					const struct ct_nat *nat)
{
	__builtin_memset(out, 0, sizeof(*out));
	out->saddr[0] = nat->flags & CT_NAT_DST ? nat->daddr[0] : key->daddr[0];
	out->sport = nat->flags & CT_NAT_DST ? nat->dport : key->dport;
	out->daddr[0] = nat->flags & CT_NAT_SRC ? nat->saddr[0] : key->saddr[0];
	out->dport = nat->flags & CT_NAT_SRC ? nat->sport : key->sport;
	out->zone = key->zone;
	out->proto = key->proto;
	out->family = key->family;
	out->ident = key->ident;
}

/* RFC 1624, equation 3, on one's complement sums in network byte order. */
static __always_inline void csum_replace(__sum16 *check, __u32 from, __u32 to)
{
	__u32 sum = (__u16)(~*check);

	from = ~from;
	sum += (from & 0xffff) + (from >> 16);
	sum += (to & 0xffff) + (to >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	*check = ~sum;
}

static __always_inline void set_addr(struct packet *p, __be32 *field, __be32 addr)
{
	csum_replace(&p->ip->check, *field, addr);
	csum_replace(&p->tcp->check, *field, addr);
	*field = addr;
}

static __always_inline void set_port(struct packet *p, __be16 *field, __be16 port)
{
	csum_replace(&p->tcp->check, *field, port);
	*field = port;
}

static __always_inline void rewrite(struct packet *p, const struct ct_nat *nat)
{
	unsigned char mac[ETH_ALEN];

	if (nat->flags & CT_NAT_SRC) {
		set_addr(p, &p->ip->saddr, nat->saddr[0]);
		set_port(p, &p->tcp->source, nat->sport);
	}
	if (nat->flags & CT_NAT_DST) {
		set_addr(p, &p->ip->daddr, nat->daddr[0]);
		set_port(p, &p->tcp->dest, nat->dport);
	}
	/* One link: the packet returns to the router that sent it. */
	__builtin_memcpy(mac, p->eth->h_source, ETH_ALEN);
	__builtin_memcpy(p->eth->h_source, p->eth->h_dest, ETH_ALEN);
	__builtin_memcpy(p->eth->h_dest, mac, ETH_ALEN);
}

static __always_inline __u32 state_timeout(__u8 state)
{
	if (state < CT_ESTABLISHED)
		return timeout_handshake;
	return state == CT_ESTABLISHED ? timeout_established : timeout_closing;
}

static __always_inline __u8 next_state(__u8 state, __u16 own, __u16 other, __u32 dir,
				       const struct tcphdr *tcp)
{
	if (tcp->rst || (own & other & CT_TCP_FIN_ACKED))
		return CT_CLOSED;
	if ((own | other) & CT_TCP_FIN)
		return CT_CLOSING;
	if (tcp->syn)
		return dir == CT_REPLY && state < CT_SYN_RECV ? CT_SYN_RECV : state;
	/* A backend sends no data before its client has acknowledged. A plain
	 * reply therefore ends the handshake, even if this node took the flow
	 * over in the middle of the handshake. */
	if (tcp->ack && state < CT_ESTABLISHED && (state == CT_SYN_RECV || dir == CT_REPLY))
		return CT_ESTABLISHED;
	return state;
}

/* Updates one entry of a connection in place. The caller updates both entries
 * of a flow for every packet that can change the state. */
static __always_inline void follow(struct ct_value *v, __u32 dir, const struct packet *p)
{
	struct ct_tcp *own = &v->tcp[dir & 1], *other = &v->tcp[!(dir & 1)];
	__u32 ack = bpf_ntohl(p->tcp->ack_seq);

	own->seq = p->seq_end;
	own->ack = ack;
	own->window = bpf_ntohs(p->tcp->window);
	if (p->tcp->syn)
		own->flags |= CT_TCP_SYN;
	if (p->tcp->rst)
		own->flags |= CT_TCP_RST;
	if (p->tcp->fin) {
		own->flags |= CT_TCP_FIN;
		own->fin_seq = p->seq_end;
	}
	if (p->tcp->ack && other->flags & CT_TCP_FIN && (__s32)(ack - other->fin_seq) >= 0)
		other->flags |= CT_TCP_FIN_ACKED;
	v->state = next_state(v->state, own->flags, other->flags, dir, p->tcp);
	v->idle_timeout = state_timeout(v->state);
}

/* Sets the fields that only the next layout has. */
static __always_inline void create_next(struct ct_value *v)
{
#ifdef CT_NEXT
	v->mark = bpf_get_prandom_u32();
#endif
}

static __always_inline void track_next(struct ct_value *v, const struct packet *p)
{
#ifdef CT_NEXT
	if (bpf_ntohl(p->tcp->seq) != p->seq_end)
		v->rx_time = v->last_used;
#endif
}

/* Returns 1 if the packet ends the connection. */
static __always_inline int track(struct ct_value *v, const struct ct_key *reverse,
				 const struct packet *p)
{
	int handshake = p->tcp->syn || p->tcp->fin || p->tcp->rst || v->state != CT_ESTABLISHED;
	struct ct_value *peer;
	__u32 dir = v->direction;

	v->last_used = bpf_ktime_get_ns();
	__sync_fetch_and_add(&v->packets, 1);
	__sync_fetch_and_add(&v->bytes, p->len);
	follow(v, dir, p);
	track_next(v, p);
	if (!handshake)
		return 0;
	peer = bpf_map_lookup_elem(&ct_map, reverse);
	if (peer)
		follow(peer, dir, p);
	return v->state == CT_CLOSED;
}

static __always_inline void delete_flow(const struct ct_key *key, const struct ct_key *reverse)
{
	if (!bpf_map_delete_elem(&ct_map, key))
		report_delete(key);
	if (!bpf_map_delete_elem(&ct_map, reverse))
		report_delete(reverse);
	count(STAT_CLOSED);
}

/* Picks a backend at random. It skips a backend whose reply direction is in use:
 * the same client port has reached it through another service. */
static __always_inline struct backend *pick(const struct vip_value *vip, const struct ct_key *key,
					    struct ct_key *reverse)
{
	struct ct_nat nat = { .flags = CT_NAT_DST };
	__u32 at = bpf_get_prandom_u32();
	struct backend *b;

	for (int i = 0; i < BACKEND_TRIES; i++, at++) {
		__u32 index = vip->first + at % vip->count;

		b = bpf_map_lookup_elem(&backends, &index);
		if (!b || !b->port)
			continue;
		nat.daddr[0] = b->addr;
		nat.dport = b->port;
		reverse_key(reverse, key, &nat);
		if (!bpf_map_lookup_elem(&ct_map, reverse))
			return b;
	}
	return NULL;
}

/* Creates both entries of a flow. The reply's entry is first, so that it exists
 * whenever the original one exists. */
static __always_inline int create(const struct ct_key *key, struct ct_key *reverse,
				  const struct vip_value *vip)
{
	struct ct_value v = {};
	struct backend *b;

	b = pick(vip, key, reverse);
	if (!b) {
		count(STAT_NO_BACKEND);
		return -1;
	}
	v.created = bpf_ktime_get_ns();
	v.last_used = v.created;
	v.idle_timeout = timeout_handshake;
	v.backend_id = b->id;
	v.vip_id = vip->id;
	v.state = CT_SYN_SENT;
	v.direction = CT_REPLY;
	v.nat.flags = CT_NAT_SRC;
	v.nat.saddr[0] = key->daddr[0];
	v.nat.sport = key->dport;
	create_next(&v);
	if (bpf_map_update_elem(&ct_map, reverse, &v, BPF_ANY))
		goto full;
	report_update(reverse, &v);
	v.direction = CT_ORIGINAL;
	__builtin_memset(&v.nat, 0, sizeof(v.nat));
	v.nat.flags = CT_NAT_DST;
	v.nat.daddr[0] = b->addr;
	v.nat.dport = b->port;
	if (!bpf_map_update_elem(&ct_map, key, &v, BPF_ANY)) {
		report_update(key, &v);
		count(STAT_NEW);
		return 0;
	}
	if (!bpf_map_delete_elem(&ct_map, reverse))
		report_delete(reverse);
full:
	count(STAT_FULL);
	return -1;
}

SEC("xdp")
int lb(struct xdp_md *ctx)
{
	struct vip_key service = {};
	struct ct_key key, reverse;
	struct vip_value *vip;
	struct ct_value *v;
	struct packet p;
	struct ct_nat nat;

	if (parse(ctx, &p))
		return XDP_PASS;
	make_key(&key, &p);
	v = bpf_map_lookup_elem(&ct_map, &key);
	if (v && v->state == CT_CLOSING && p.tcp->syn && !p.tcp->ack) {
		/* The client reuses its port before the old flow is deleted. */
		nat = v->nat;
		reverse_key(&reverse, &key, &nat);
		delete_flow(&key, &reverse);
		v = NULL;
	}
	if (!v) {
		service.addr = p.ip->daddr;
		service.port = p.tcp->dest;
		service.proto = IPPROTO_TCP;
		vip = bpf_map_lookup_elem(&vips, &service);
		if (!vip || !vip->count)
			return XDP_PASS;
		if (!p.tcp->syn || p.tcp->ack) {
			count(STAT_NO_ENTRY);
			return XDP_PASS;
		}
		if (create(&key, &reverse, vip))
			return XDP_DROP;
		v = bpf_map_lookup_elem(&ct_map, &key);
		if (!v)
			return XDP_DROP;
	}
	nat = v->nat; /* a copy: the entry may be gone before the rewrite */
	reverse_key(&reverse, &key, &nat);
	if (track(v, &reverse, &p))
		delete_flow(&key, &reverse);
	rewrite(&p, &nat);
	count(STAT_FORWARDED);
	return XDP_TX;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
