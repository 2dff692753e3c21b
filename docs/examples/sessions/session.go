package main

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

// key and value are these types of a load balancer's source, which clang describes in BTF:
//
//	struct session_key {
//		__be32 saddr __attribute__((btf_decl_tag("mapsync:ipv4")));
//		__be16 sport;
//		__be16 dport;
//	};
//	struct session {
//		__be32 backend __attribute__((btf_decl_tag("mapsync:ipv4")));
//		__be16 port;
//	};
type key struct {
	Source                  [4]byte
	SourcePort, ServicePort uint16
}

type value struct {
	Backend [4]byte
	Port    uint16
}

// entrySize is the size of a key and of a value in bytes. The last two bytes of a value are padding.
const entrySize = 8

// maxSessions is the maximum number of entries of the map.
const maxSessions = 1024

// mapSpec returns the map with its types. A load balancer gets them from its object file.
func mapSpec() *ebpf.MapSpec {
	short := &btf.Int{Name: "unsigned short", Size: 2}
	word := &btf.Int{Name: "unsigned int", Size: 4}
	be16 := &btf.Typedef{Name: "__be16", Type: short}
	be32 := &btf.Typedef{Name: "__be32", Type: word}
	address := []string{"mapsync:ipv4"}
	return &ebpf.MapSpec{
		Name: "ct_map", Type: ebpf.Hash, KeySize: entrySize, ValueSize: entrySize, MaxEntries: maxSessions,
		Key: &btf.Struct{Name: "session_key", Size: entrySize, Members: []btf.Member{
			{Name: "saddr", Type: be32, Tags: address},
			{Name: "sport", Type: be16, Offset: 32},
			{Name: "dport", Type: be16, Offset: 48},
		}},
		Value: &btf.Struct{Name: "session", Size: entrySize, Members: []btf.Member{
			{Name: "backend", Type: be32, Tags: address},
			{Name: "port", Type: be16, Offset: 32},
		}},
	}
}

func encodeKey(k key) (b [entrySize]byte) {
	copy(b[:], k.Source[:])
	binary.BigEndian.PutUint16(b[4:], k.SourcePort)
	binary.BigEndian.PutUint16(b[6:], k.ServicePort)
	return b
}

func decodeKey(b [entrySize]byte) key {
	return key{Source: [4]byte(b[:4]), SourcePort: binary.BigEndian.Uint16(b[4:]), ServicePort: binary.BigEndian.Uint16(b[6:])}
}

func encodeValue(v value) (b [entrySize]byte) {
	copy(b[:], v.Backend[:])
	binary.BigEndian.PutUint16(b[4:], v.Port)
	return b
}

func decodeValue(b [entrySize]byte) value {
	return value{Backend: [4]byte(b[:4]), Port: binary.BigEndian.Uint16(b[4:])}
}

// session is an entry of the map.
type session struct {
	key   key
	value value
}

// String returns the client, the port of the service and the backend.
func (s session) String() string {
	return fmt.Sprintf("%s -> :%d -> %s", netip.AddrPortFrom(netip.AddrFrom4(s.key.Source), s.key.SourcePort), s.key.ServicePort,
		netip.AddrPortFrom(netip.AddrFrom4(s.value.Backend), s.value.Port))
}
