// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Maps as they are found in the wild, and one of every kind of member. No program: the
 * tests read the types, and create the maps.
 */
#include <linux/bpf.h>
#include <linux/in.h>
#include <linux/in6.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>

#define ROLE(role) __attribute__((btf_decl_tag("mapsync:" role)))
#define MAP(name, kind, ktype, vtype)                 \
	struct {                                      \
		__uint(type, kind);                   \
		__uint(max_entries, 64);              \
		__uint(map_flags, BPF_F_NO_PREALLOC); \
		__type(key, ktype);                   \
		__type(value, vtype);                 \
	} name SEC(".maps")

typedef _Bool bool;

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* ct: dual-stack connection tracking of a load balancer, 48-byte key, spin lock. */

struct ct_key {
	__u32 daddr[4] ROLE("ipv6");
	__u32 saddr[4] ROLE("ipv6");
	__be16 sport ROLE("port");
	__be16 dport ROLE("port");
	__u16 zone;
	__u8 l4proto;
	__u8 v6;
	__u32 ident;
	__u32 type;
};

struct ct_tcp_dir {
	__u16 hstate;
	__u16 init_acks;
	__u32 seq ROLE("volatile");
	__be32 pack ROLE("volatile");
	__be32 pseq ROLE("volatile");
};

struct ct_tcp {
	__u16 state;
	__u16 fndir;
	struct ct_tcp_dir tcp_cts[2];
};

struct ct_udp {
	__u16 state;
	__u16 fndir;
	__u32 pkts_seen;
};

struct ct_icmp {
	__u8 state;
	__u8 errs;
	__u16 lseq;
};

enum ct_dir { CT_DIR_IN, CT_DIR_OUT, CT_DIR_MAX };

struct ct_counters {
	__u64 bytes ROLE("volatile");
	__u64 packets ROLE("volatile");
};

struct act_redirect {
	__u16 oport;
	__u16 fr;
};

struct act_nat {
	__be32 xip[4] ROLE("ipv6");
	__be32 rip[4] ROLE("ipv6");
	__be16 xport ROLE("port");
	__u8 fr;
	__u8 doct;
	__u32 rid;
	__u32 aid;
	__u8 nv6;
	__u8 dsr;
	__u8 cdis;
	__u8 nmh;
};

struct ct_value {
	__u8 act_type;
	__u8 ftrap;
	__u16 oaux;
	__u32 cidx;
	struct bpf_spin_lock lock;
	__u16 rid;
	__u16 aid;
	union {
		struct ct_tcp t;
		struct ct_udp u;
		struct ct_icmp i;
	} pi;
	enum ct_dir dir;
	struct ct_counters pb;
	__u64 ito;
	__u64 lts ROLE("ktime,volatile");
	union {
		struct act_redirect port_act;
		struct act_nat nat_act;
	};
};

MAP(ct, BPF_MAP_TYPE_HASH, struct ct_key, struct ct_value);

/* flags: bitfields, and nested NAT data, as Cilium and others have them. */

struct flags_key {
	__be32 daddr ROLE("ipv4");
	__be32 saddr ROLE("ipv4");
	__be16 dport;
	__be16 sport;
	__u8 nexthdr;
	__u8 flags;
} __attribute__((packed));

struct nat_addr {
	union {
		struct {
			__be32 to_saddr;
			__be16 to_sport;
		};
		struct {
			struct in6_addr to_saddr6;
			__be16 to_sport6;
		};
	};
	__u64 created ROLE("boottime");
};

struct flags_value {
	__u64 rx_packets;
	__u32 lifetime ROLE("seconds");
	__u16 rx_closing : 1, tx_closing : 1, lb_loopback : 1, seen_non_syn : 1, reserved : 12;
	__u16 rev_nat_index;
	struct nat {
		struct nat_addr src, dst;
		int quota : 20;
		enum ct_dir dir : 3;
		unsigned int : 3;
		bool active : 1;
		unsigned int whole : 32;
		__u64 wide : 40;
		__u64 rest : 24;
		union {
			struct {
				__u8 low : 4, high : 4;
			};
			__u8 both;
		};
		union {
			__u8 some : 4;
			__u8 all;
		};
	} nat;
};

MAP(flags, BPF_MAP_TYPE_LRU_HASH, struct flags_key, struct flags_value);

/* tight: packed members that are not aligned. */

struct tight_value {
	__u8 kind;
	__u64 bytes;
	__u16 port;
	struct {
		__u8 a;
		__u32 b;
	} __attribute__((packed)) inner[3];
	__u64 at;
} __attribute__((packed));

MAP(tight, BPF_MAP_TYPE_HASH, __u32, struct tight_value);

/* flow: counters of a flow, as NetObserv has them. */

struct flow_id {
	__u8 direction;
	__u8 src_mac[6];
	__u8 dst_mac[6];
	__u16 eth_protocol;
	struct in6_addr src_ip, dst_ip;
	__u16 src_port ROLE("port");
	__u16 dst_port ROLE("port");
	__u8 transport_protocol;
	__u8 pad[3]; /* zero */
	__u32 if_index ROLE("ifindex");
};

typedef __u64 ktime_ns ROLE("ktime");

struct flow_counters {
	ktime_ns start;
	ktime_ns end ROLE("volatile");
	__u64 bytes ROLE("volatile,sum");
	__u32 packets ROLE("volatile,sum");
	__u16 flags;
	__u8 errno_fallback;
};

MAP(flow, BPF_MAP_TYPE_PERCPU_HASH, struct flow_id, struct flow_counters);

/* plain: neither key nor value is a struct; on each CPU. */

MAP(plain, BPF_MAP_TYPE_LRU_PERCPU_HASH, __be32, __u64);

/* opaque: no types. */

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__uint(key_size, 12);
	__uint(value_size, 20);
} opaque SEC(".maps");

/* array: of values per CPU. */

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct flow_counters);
} array SEC(".maps");

/* queue: not replicated. */

struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__uint(max_entries, 1);
	__type(value, struct flow_counters);
} queue SEC(".maps");

/* roles: each of them. */

struct roles_key {
	__u32 v4 ROLE("ipv4");
	__u8 v4_bytes[4] ROLE("ipv4");
	__u64 v6[2] ROLE("ipv6");
	__u16 mac[3] ROLE("mac");
	__u16 port ROLE("be,port");
	__u64 order ROLE("be");
	int ifindex ROLE("ifindex");
	struct {
		__be16 two[2];
	} pair;
	bool flag;
};

struct roles_value {
	__u64 ktime ROLE("ktime");
	__s64 boottime ROLE("boottime");
	__u64 jiffies ROLE("jiffies");
	__u32 jiffies32 ROLE("jiffies");
	__u64 seconds[2] ROLE("seconds");
	__u32 seconds32 ROLE("seconds");
	__u16 ifindex ROLE("ifindex");
	__u16 volatile_ ROLE("volatile");
	__u32 local ROLE("local");
	__s32 local_default ROLE("local") ROLE("default=-5");
	__u8 local_bytes[4] ROLE("local,default=0x01020304");
	__u32 other __attribute__((btf_decl_tag("not:ours")));
	__u64 pinned ROLE("number=70");
	__u64 after ROLE("number=100");
};

MAP(roles, BPF_MAP_TYPE_HASH, struct roles_key, struct roles_value);

/* kinds: every kind of member. */

enum small { SMALL_A = 1, SMALL_B = 200 } __attribute__((mode(byte)));
enum wide { WIDE_A = 1, WIDE_B = 0x100000000ULL };

typedef struct {
	__u8 octet[6];
} mac_t;

struct inner {
	__u32 x;
	__u8 y;
};

struct kinds_value {
	struct bpf_timer timer;
	__u8 u8;
	__s8 s8;
	char c;
	bool b;
	__u16 u16;
	__s16 s16;
	__u32 u32;
	__s32 s32;
	__u64 u64;
	__s64 s64;
	unsigned __int128 u128;
	__int128 s128[2];
	enum ct_dir e;
	enum small e8;
	enum wide e64;
	enum { ANON_A, ANON_B } anonymous_enum;
	float f;
	double d[2];
	char name[16];
	__s8 signed_bytes[5];
	__u8 matrix[2][3];
	bool bools[3];
	__u32 cube[2][3][4];
	__be16 ports[4];
	struct in_addr v4[2];
	struct inner grid[2][2];
	const volatile __u32 qualified;
	mac_t mac;
	struct {
		__u8 p;
		struct {
			__u16 q;
			union {
				__u32 r;
				__u8 s[4];
			};
		};
		struct {
			__u8 t;
		} named;
	};
	union {
		__be32 four;
		struct in6_addr six;
		__u32 words[4];
	} address;
	union {
		__u32 wide_part;
		struct {
			__u8 pad[2];
			__u64 far_part;
		} __attribute__((packed));
		__u8 tail[7];
	};
	union {
		__u32 head;
		struct {
			__u8 first;
			__u32 back;
		} both_ends;
	} torn[2];
	union {
		__u32 before;
		struct {
			__u8 nearly;
			__u32 behind;
		};
	};
	union {
		void *pointer;
		__u64 number;
	};
	union {
		struct inner first;
		__u8 raw[8];
	} padded;
	struct task_struct *task;
	void (*function)(int);
	void *pointers[2];
	struct {
	} empty;
	__u64 last;
	__u32 flexible[];
};

MAP(kinds, BPF_MAP_TYPE_HASH, __u32, struct kinds_value);
