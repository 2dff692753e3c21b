package dataplane

import (
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

// Map is a map of a data plane.
type Map struct {
	// Profile is the profile that has the map, and Name its name there.
	Profile, Name string
	Type          ebpf.MapType
	// Key and Value are its types. They are nil if the map has none, and KeySize and ValueSize then are its sizes in bytes.
	Key, Value         btf.Type
	KeySize, ValueSize int
	// Set makes random bytes a valid entry, as a program would write it: discriminators of unions, and zero where the program
	// leaves a field at zero.
	Set func(key, value []byte, i int)
}

// Maps returns the maps of all profiles.
func Maps() []Map {
	var list []Map
	for _, maps := range [][]Map{loxilb(), calico(), xdpFilter(), einat(), cilium(), ciliumEgress(), katran()} {
		list = append(list, maps...)
	}
	return list
}

// loxilb returns the map of LoxiLB (common/llb_dpapi.h, kernel/llb_kern_cdefs.h).
func loxilb() []Map {
	key := structOf("dp_ct_key", f("daddr", array(u32, 4)), f("saddr", array(u32, 4)), f("sport", u16), f("dport", u16), f("zone", u16),
		f("l4proto", u8), f("v6", u8), f("ident", u32), f("type", u32))
	dir := enumOf("", "CT_DIR_IN", "CT_DIR_OUT", "CT_DIR_MAX")
	tcpState := &btf.Enum{Size: 4, Values: []btf.EnumValue{{Name: "CT_TCP_CLOSED"}, {Name: "CT_TCP_SS", Value: 1}, {Name: "CT_TCP_SA", Value: 2}, {Name: "CT_TCP_EST", Value: 4}}}
	sctpState := &btf.Enum{Size: 4, Values: []btf.EnumValue{{Name: "CT_SCTP_CLOSED"}, {Name: "CT_SCTP_INIT", Value: 1}, {Name: "CT_SCTP_COOKIE", Value: 4}}}
	tcp := structOf("", f("hstate", u16), f("init_acks", u8), f("ppv2", u8), f("seq", u32), f("pack", be32), f("pseq", be32))
	sctp := structOf("", f("nh", u32), f("odst", u32), f("osrc", u32), f("mh_host", array(be32, 4)))
	states := unionOf("",
		f("t", &btf.Typedef{Name: "ct_tcp_pinf_t", Type: structOf("", f("state", tcpState), f("fndir", dir), f("tcp_cts", array(tcp, 2)))}),
		f("u", &btf.Typedef{Name: "ct_udp_pinf_t", Type: structOf("", f("state", u16), f("pkts_seen", u16), f("rpkts_seen", u16), f("fndir", dir))}),
		f("i", &btf.Typedef{Name: "ct_icmp_pinf_t", Type: structOf("", f("state", u8), f("errs", u8), f("lseq", u16))}),
		f("s", &btf.Typedef{Name: "ct_sctp_pinf_t", Type: structOf("", f("state", sctpState), f("fndir", dir), f("itag", u32), f("otag", u32), f("cookie", u32), f("sctp_cts", array(sctp, 2)))}))
	protocol := structOf("", f("", states), f("frag", u16), f("npmhh", u16), f("pmhh", array(u32, 4)), f("l3i", structOf("", f("state", u32))))
	transform := structOf("mf_xfrm_inf", f("nat_flags", u8), f("inactive", u8), f("wprio", u8), f("nv6", u8), f("dsr", u8), f("mhon", u8), f("mhs", u8), f("pad1", u8),
		f("nat_xip", array(u32, 4)), f("nat_rip", array(u32, 4)), f("nat_xport", u16), f("osp", u16), f("odp", u16), f("pad2", array(u8, 2)))
	data := structOf("dp_ct_dat", f("rid", u16), f("aid", u16), f("nid", u32), f("pi", protocol), f("dir", dir), f("smr", u32), f("xi", transform),
		f("pb", structOf("dp_pb_stats", f("bytes", u64), f("packets", u64))))
	next := structOf("dp_rt_nh_act", f("nh_num", array(u16, 4)), f("naps", u16), f("bd", u16), f("tid", u32),
		f("l2nh", structOf("dp_rt_l2nh_act", f("dmac", array(u8, 6)), f("smac", array(u8, 6)), f("bd", u16), f("rnh_num", u16))))
	nat := structOf("dp_nat_act", f("xip", array(u32, 4)), f("rip", array(u32, 4)), f("xport", u16), f("fr", u8), f("doct", u8), f("rid", u32), f("aid", u32),
		f("nv6", u8), f("dsr", u8), f("cdis", u8), f("nmh", u8), f("ppv2", u8))
	action := unionOf("", f("port_act", structOf("dp_rdr_act", f("oport", u16), f("fr", u16))), f("pdr_sess_act", structOf("dp_sess_act", f("sess_id", u32))),
		f("rt_nh", next), f("nat_act", nat))
	value := structOf("dp_ct_tact",
		f("ca", structOf("dp_cmn_act", f("act_type", u8), f("ftrap", u8), f("oaux", u16), f("cidx", u32), f("fwrid", u16), f("record", u16), f("mark", u32))),
		f("lock", structOf("bpf_spin_lock", f("val", u32))), f("ctd", data), f("ito", u64), f("lts", u64), f("", action))
	return []Map{{
		Profile: "loxilb", Name: "ct_map", Type: ebpf.Hash, Key: key, Value: value, KeySize: 48, ValueSize: 280,
		Set: func(key, value []byte, i int) {
			key[38], key[39] = []byte{6, 17, 1, 132, 58, 50}[i%6], byte(i/6%2)
			value[0] = []byte{1, 2, 16, 12, 20, 0}[i/12%6]
			value[143] = key[39]
		},
	}}
}

// calico returns the maps of Calico (felix/bpf-gpl/conntrack_types.h, nat_types.h).
func calico() (list []Map) {
	for version, addr := range map[string]btf.Type{
		"v4": &btf.Typedef{Name: "ipv46_addr_t", Type: be32},
		"v6": &btf.Typedef{Name: "ipv46_addr_t", Type: structOf("", f("a", be32), f("b", be32), f("c", be32), f("d", be32))},
	} {
		v6 := version == "v6"
		key := structOf("calico_ct_key", f("protocol", u32), f("addr_a", addr), f("addr_b", addr), f("port_a", u16), f("port_b", u16))
		leg := structOf("calico_ct_leg", f("bytes", u64), f("packets", u32), f("seqno", u32), bit("syn_seen"), bit("ack_seen"), bit("fin_seen"),
			bit("rst_seen"), bit("approved"), bit("opener"), bit("workload"), f("ifindex", u32))
		filler, pad := uint32(46), 7
		if v6 {
			filler, pad = 60, 19
		}
		data := unionOf("",
			f("", structOf("", f("a_to_b", leg), f("b_to_a", leg), f("tun_ip", addr), f("orig_ip", addr), f("orig_port", u16), f("orig_sport", u16), f("orig_sip", addr))),
			f("", structOf("", f("nat_rev_key", key), f("nat_sport", u16), f("pad2", array(u8, filler)))))
		kind := unionOf("", f("", structOf("", f("type", u8), f("flags", u8), f("flags3", u8), f("flags4", u8))), f("type_flags_word", u32))
		value := structOf("calico_ct_value", f("rst_seen", u64), f("last_seen", u64), f("", kind), f("pad0", array(u8, 3)), f("flags2", u8), f("", data))
		nat := structOf("calico_nat", f("addr", addr), f("port", u16), f("protocol", u8))
		affinityKey := structOf("calico_nat_affinity_key", f("nat_key", nat), f("client_ip", addr), f("padding", u32))
		destination := f("nat_dest", structOf("calico_nat_dest", f("addr", addr), f("port", u16), f("pad", array(u8, 2))))
		affinity := structOf("calico_nat_affinity_val", destination, f("ts", u64))
		sizes := [4]int{16, 88, 16, 16}
		if v6 {
			affinity = structOf("calico_nat_affinity_val", destination, f("__pad", u32), f("ts", u64))
			sizes = [4]int{40, 128, 40, 32}
		}
		list = append(list, Map{
			Profile: "calico", Name: "cali_" + version + "_ct4", Type: ebpf.LRUHash, Key: key, Value: value, KeySize: sizes[0], ValueSize: sizes[1],
			Set: func(_, value []byte, i int) { value[16] = byte(i % 3) },
		}, Map{
			Profile: "calico", Name: "cali_" + version + "_nat_aff", Type: ebpf.LRUHash, Key: affinityKey, Value: affinity, KeySize: sizes[2], ValueSize: sizes[3],
			Set: func(key, _ []byte, _ int) {
				key[pad] = 0
			},
		})
	}
	return list
}

// xdpFilter returns the maps of xdp-filter (xdp-filter/xdpfilt_prog.h).
func xdpFilter() (list []Map) {
	in6 := structOf("in6_addr", f("in6_u", unionOf("", f("u6_addr8", array(u8, 16)), f("u6_addr16", array(be16, 8)), f("u6_addr32", array(be32, 4)))))
	for _, m := range []struct {
		name string
		key  btf.Type
		size int
	}{{"filter_ipv4", u32, 4}, {"filter_ipv6", in6, 16}, {"filter_ethernet", structOf("ethaddr", f("addr", array(u8, 6))), 6}} {
		list = append(list, Map{Profile: "xdp-filter", Name: m.name, Type: ebpf.PerCPUHash, Key: m.key, Value: u64, KeySize: m.size, ValueSize: 8})
	}
	return list
}

// einat returns the maps of einat, of the build with IPv6 (src/bpf/einat.h).
func einat() []Map {
	address := unionOf("u_inet_addr", f("all", array(u32, 4)), f("ip", be32), f("ip6", array(be32, 4)))
	tuple := structOf("inet_tuple", f("saddr", address), f("daddr", address), f("sport", be16), f("dport", be16))
	timer := &btf.Struct{Name: "bpf_timer", Size: 16, Members: []btf.Member{{Name: "__opaque", Type: array(u64, 2)}}}
	return []Map{{
		Profile: "einat", Name: "map_ct", Type: ebpf.Hash, KeySize: 44, ValueSize: 64,
		Key:   structOf("map_ct_key", f("ifindex", u32), f("flags", u8), f("l4proto", u8), f("_pad", u16), f("external", tuple)),
		Value: structOf("map_ct_value", f("origin", tuple), f("flags", u8), f("_pad", array(u8, 3)), f("state", u32), f("seq", u32), f("timer", timer)),
	}, {
		Profile: "einat", Name: "map_binding", Type: ebpf.Hash, KeySize: 24, ValueSize: 32,
		Key:   structOf("map_binding_key", f("ifindex", u32), f("flags", u8), f("l4proto", u8), f("from_port", be16), f("from_addr", address)),
		Value: structOf("map_binding_value", f("to_addr", address), f("to_port", be16), f("flags", u8), f("is_static", u8), f("outbound_ref", u32), f("ref", u32), f("seq", u32)),
	}}
}

// packed returns a struct without padding.
func packed(name string, members ...member) *btf.Struct {
	s := &btf.Struct{Name: name}
	end := uint32(0) // in bits
	for _, m := range members {
		size, _ := sizeAndAlign(m.typ)
		s.Members = append(s.Members, btf.Member{Name: m.name, Type: m.typ, Offset: btf.Bits(end), BitfieldSize: btf.Bits(m.bits)})
		if m.bits > 0 {
			end += m.bits
		} else {
			end += 8 * size
		}
	}
	s.Size = end / 8
	return s
}

// cilium returns the maps of Cilium from 1.19 on (bpf/lib/conntrack_types.h, nat_types.h, lb.h, common.h).
func cilium() (list []Map) {
	v6addr := unionOf("v6addr", f("", structOf("", f("p1", u32), f("p2", u32), f("p3", u32), f("p4", u32))),
		f("", structOf("", f("d1", u64), f("d2", u64))), f("addr", array(u8, 16)))
	flag := func(name string, bits uint32) member { return member{name, u16, bits} }
	value := structOf("ct_entry",
		f("", unionOf("", f("nat_addr", v6addr), f("", structOf("", f("reserved0", u64), f("backend_id", u64))))),
		f("packets", u64), f("bytes", u64), f("lifetime", u32),
		flag("rx_closing", 1), flag("tx_closing", 1), flag("reserved1", 1), flag("lb_loopback", 1), flag("seen_non_syn", 1), flag("node_port", 1),
		flag("proxy_redirect", 1), flag("dsr_internal", 1), flag("from_l7lb", 1), flag("reserved2", 1), flag("from_tunnel", 1), flag("reserved3", 5),
		f("rev_nat_index", u16), f("nat_port", be16), f("tx_flags_seen", u8), f("rx_flags_seen", u8), f("src_sec_id", u32),
		f("last_tx_report", u32), f("last_rx_report", u32))
	for _, v := range []struct {
		version         string
		addr, client    btf.Type
		key, nat, aff   int
		flags, affinity int // offsets of the flags of a tuple, and of the bits of an affinity
	}{
		{"4", be32, unionOf("lb4_affinity_client_id", f("client_ip", u32), f("client_cookie", &btf.Typedef{Name: "__net_cookie", Type: u64})), 14, 40, 16, 13, 10},
		{"6", v6addr, unionOf("lb6_affinity_client_id", f("client_ip", v6addr), f("client_cookie", &btf.Typedef{Name: "__net_cookie", Type: u64})), 38, 56, 24, 37, 18},
	} {
		tuple := packed("ipv"+v.version+"_ct_tuple", f("daddr", v.addr), f("saddr", v.addr), f("dport", be16), f("sport", be16), f("nexthdr", u8), f("flags", u8))
		to := func(suffix string) *btf.Struct {
			return structOf("", f("to_"+suffix+"addr", v.addr), f("to_"+suffix+"port", be16))
		}
		nat := structOf("ipv"+v.version+"_nat_entry", f("common", structOf("nat_entry", f("created", u64), f("needs_ct", u64), f("pad1", u64), f("pad2", u64))),
			f("", unionOf("", f("nat_info", packed("lb"+v.version+"_reverse_nat", f("address", v.addr), f("port", be16))), f("", to("s")), f("", to("d")))))
		bits := func(name string, n uint32) member { return member{name, u8, n} }
		affinityKey := packed("lb"+v.version+"_affinity_key", f("client_id", v.client), f("rev_nat_id", u16), bits("netns_cookie", 1), bits("reserved", 7),
			f("pad1", u8), f("pad2", u32))
		affinity := packed("lb_affinity_val", f("last_used", u64), f("backend_id", u32), f("pad", u32))
		ct := func(key, _ []byte, i int) { key[v.flags] = []byte{0, 1, 4, 2, 3}[i%5] }
		for _, name := range []string{"cilium_ct" + v.version + "_global", "cilium_ct_any" + v.version + "_global"} {
			list = append(list, Map{Profile: "cilium-l4lb", Name: name, Type: ebpf.LRUHash, Key: tuple, Value: value, KeySize: v.key, ValueSize: 56, Set: ct})
		}
		list = append(list, Map{
			Profile: "cilium-l4lb", Name: "cilium_snat_v" + v.version + "_external", Type: ebpf.LRUHash, Key: tuple, Value: nat, KeySize: v.key, ValueSize: v.nat,
			Set: func(key, value []byte, i int) {
				key[v.flags] = byte(i % 2)
				clear(value[len(value)-2:]) // padding
			},
		}, Map{
			Profile: "cilium-l4lb", Name: "cilium_lb" + v.version + "_affinity", Type: ebpf.LRUHash, Key: affinityKey, Value: affinity, KeySize: v.aff, ValueSize: 16,
			Set: func(key, _ []byte, _ int) {
				key[v.affinity] = 0
				clear(key[v.affinity+1:])
			},
		})
	}
	return list
}

// ciliumEgress returns the maps of Cilium as an egress gateway.
func ciliumEgress() (list []Map) {
	for _, m := range cilium() {
		if m.Profile = "cilium-egress"; !strings.HasSuffix(m.Name, "affinity") {
			list = append(list, m)
		}
	}
	return list
}

// katran returns the connection table of one CPU of Katran (katran/lib/bpf/balancer_structs.h), which has no types.
func katran() []Map {
	return []Map{{
		Profile: "katran", Name: "lru.0", Type: ebpf.LRUHash, KeySize: 40, ValueSize: 16,
		Set: func(key, value []byte, i int) {
			clear(key[37:])
			clear(value[4:8])
			if i%2 == 0 { // IPv4
				clear(key[4:16])
				clear(key[20:32])
			}
		},
	}}
}

// Referenced returns the maps that say what ids in the maps of the profiles mean.
func Referenced() []Map {
	v6addr := unionOf("v6addr", f("", structOf("", f("p1", u32), f("p2", u32), f("p3", u32), f("p4", u32))),
		f("", structOf("", f("d1", u64), f("d2", u64))), f("addr", array(u8, 16)))
	rest := []member{f("port", be16), f("proto", u8), f("flags", u8), f("cluster_id", u16), f("zone", u8), f("pad", u8)}
	return []Map{
		{Profile: "cilium-l4lb", Name: "cilium_lb4_backends_v3", Type: ebpf.Hash, Key: u32, Value: structOf("lb4_backend", append([]member{f("address", be32)}, rest...)...), KeySize: 4, ValueSize: 12},
		{Profile: "cilium-l4lb", Name: "cilium_lb6_backends_v3", Type: ebpf.Hash, Key: u32, Value: packed("lb6_backend", append([]member{f("address", v6addr)}, rest...)...), KeySize: 4, ValueSize: 24},
		{Profile: "cilium-l4lb", Name: "cilium_lb4_reverse_nat", Type: ebpf.Hash, Key: u16, Value: packed("lb4_reverse_nat", f("address", be32), f("port", be16)), KeySize: 2, ValueSize: 6},
		{Profile: "katran", Name: "reals", Type: ebpf.Array, Key: u32, KeySize: 4, ValueSize: 20, Value: structOf("real_definition",
			f("", unionOf("", f("dst", be32), f("dstv6", array(be32, 4)))), f("flags", u8))},
		{Profile: "cilium-l4lb", Name: "cilium_lb6_reverse_nat", Type: ebpf.Hash, Key: u16, Value: packed("lb6_reverse_nat", f("address", v6addr), f("port", be16)), KeySize: 2, ValueSize: 18},
	}
}
