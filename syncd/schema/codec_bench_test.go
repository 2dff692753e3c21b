package schema

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"google.golang.org/protobuf/proto"

	"mapsync/internal/conntrackpb"
)

// The entry of the codec benchmarks: a dual-stack conntrack entry of 48 + 176 bytes with 40 fields.
// internal/conntrackpb has the same messages as generated code.

func conntrackTCP() *Message {
	return &Message{Name: "tcp", Size: 20, Fields: []Field{
		{Name: "end", Number: 1, Offset: 0, Size: 4, Kind: KindUint},
		{Name: "max_win", Number: 2, Offset: 4, Size: 4, Kind: KindUint},
		{Name: "syn_delta", Number: 3, Offset: 8, Size: 4, Kind: KindUint},
		{Name: "retrans", Number: 4, Offset: 12, Size: 2, Kind: KindUint},
		{Name: "mss", Number: 5, Offset: 14, Size: 2, Kind: KindUint},
		{Name: "scale", Number: 6, Offset: 16, Size: 1, Kind: KindUint},
		{Name: "state", Number: 7, Offset: 17, Size: 1, Kind: KindUint},
	}}
}

func conntrackSchema() *Schema {
	key := &Message{Name: "key", Size: 48, Fields: []Field{
		{Name: "saddr", Number: 1, Offset: 0, Size: 16, Kind: KindBytes, Roles: RoleIPv6},
		{Name: "daddr", Number: 2, Offset: 16, Size: 16, Kind: KindBytes, Roles: RoleIPv6},
		{Name: "sport", Number: 3, Offset: 32, Size: 2, Kind: KindUint, Roles: RoleBE},
		{Name: "dport", Number: 4, Offset: 34, Size: 2, Kind: KindUint, Roles: RoleBE},
		{Name: "zone", Number: 5, Offset: 36, Size: 4, Kind: KindUint},
		{Name: "ident", Number: 6, Offset: 40, Size: 4, Kind: KindUint},
		{Name: "proto", Number: 7, Offset: 44, Size: 1, Kind: KindUint},
		{Name: "family", Number: 8, Offset: 45, Size: 1, Kind: KindUint},
	}}
	nat := &Message{Name: "nat", Size: 40, Fields: []Field{
		{Name: "saddr", Number: 1, Offset: 0, Size: 16, Kind: KindBytes, Roles: RoleIPv6},
		{Name: "daddr", Number: 2, Offset: 16, Size: 16, Kind: KindBytes, Roles: RoleIPv6},
		{Name: "sport", Number: 3, Offset: 32, Size: 2, Kind: KindUint, Roles: RoleBE},
		{Name: "dport", Number: 4, Offset: 34, Size: 2, Kind: KindUint, Roles: RoleBE},
		{Name: "flags", Number: 5, Offset: 36, Size: 4, Kind: KindUint},
	}}
	value := &Message{Name: "value", Size: 176, Fields: []Field{
		{Name: "status", Number: 1, Offset: 0, Size: 4, Kind: KindUint},
		{Name: "mark", Number: 2, Offset: 4, Size: 4, Kind: KindUint},
		{Name: "created", Number: 3, Offset: 8, Size: 8, Kind: KindTime, Roles: RoleKtime},
		{Name: "last_seen", Number: 4, Offset: 16, Size: 8, Kind: KindTime, Roles: RoleKtime | RoleVolatile},
		{Name: "expires", Number: 5, Offset: 24, Size: 8, Kind: KindTime, Roles: RoleKtime},
		{Name: "packets_orig", Number: 6, Offset: 32, Size: 8, Kind: KindUint, Roles: RoleVolatile},
		{Name: "bytes_orig", Number: 7, Offset: 40, Size: 8, Kind: KindUint, Roles: RoleVolatile},
		{Name: "packets_reply", Number: 8, Offset: 48, Size: 8, Kind: KindUint, Roles: RoleVolatile},
		{Name: "bytes_reply", Number: 9, Offset: 56, Size: 8, Kind: KindUint, Roles: RoleVolatile},
		{Name: "nat", Number: 10, Offset: 64, Size: 40, Kind: KindMessage, Message: nat},
		{Name: "tcp_orig", Number: 11, Offset: 104, Size: 20, Kind: KindMessage, Message: conntrackTCP()},
		{Name: "tcp_reply", Number: 12, Offset: 124, Size: 20, Kind: KindMessage, Message: conntrackTCP()},
		{Name: "backend", Number: 13, Offset: 144, Size: 4, Kind: KindUint},
		{Name: "service", Number: 14, Offset: 148, Size: 4, Kind: KindUint},
		{Name: "mac", Number: 15, Offset: 152, Size: 6, Kind: KindBytes, Roles: RoleMAC},
		{Name: "lock", Number: 16, Offset: 160, Size: 4, Kind: KindNone},
		{Name: "cpu", Number: 17, Offset: 164, Size: 4, Kind: KindUint, Roles: RoleLocal},
		{Name: "tokens", Number: 18, Offset: 168, Size: 8, Kind: KindUint},
	}}
	return &Schema{Map: "ct_map", Key: key, Value: value}
}

// conntrackBoot is the boot time of the simulated host, in Unix nanoseconds.
const conntrackBoot = 1_760_000_000_000_000_000

// conntrackEntry returns a TCP connection over IPv4 to a service with a translated address: 26 of
// the 40 fields are not zero.
func conntrackEntry(r *rand.Rand) (key, value []byte) {
	key, value = make([]byte, 48), make([]byte, 176)
	le, be := binary.LittleEndian, binary.BigEndian
	copy(key, []byte{10, byte(r.Uint32()), byte(r.Uint32()), byte(1 + r.IntN(254))})
	copy(key[16:], []byte{192, 0, 2, byte(1 + r.IntN(32))})
	be.PutUint16(key[32:], uint16(32768+r.IntN(28232)))
	be.PutUint16(key[34:], 443)
	key[44], key[45] = 6, 2

	le.PutUint32(value[0:], 14)
	created := uint64(r.Int64N(20 * 86400e9))
	le.PutUint64(value[8:], created)
	le.PutUint64(value[16:], created+uint64(r.Int64N(600e9)))
	for _, at := range []int{32, 48} {
		packets := uint64(1) << r.IntN(11)
		packets += uint64(r.Int64N(int64(packets)))
		le.PutUint64(value[at:], packets)
		le.PutUint64(value[at+8:], packets*uint64(60+r.IntN(1200)))
	}
	copy(value[80:], []byte{10, 1, byte(r.Uint32()), byte(1 + r.IntN(254))})
	be.PutUint16(value[98:], 8443)
	le.PutUint32(value[100:], 3)
	for _, at := range []int{104, 124} {
		le.PutUint32(value[at:], r.Uint32()|1)
		le.PutUint32(value[at+4:], 29200+r.Uint32N(36000))
		le.PutUint16(value[at+14:], 1460)
		value[at+16], value[at+17] = 7, 3
	}
	le.PutUint32(value[144:], 1+r.Uint32N(500))
	le.PutUint32(value[148:], 1+r.Uint32N(100))
	return key, value
}

// conntrackRig has entries as struct bytes, wire bytes and generated messages.
type conntrackRig struct {
	enc          *Encoder
	dec          *Decoder
	times        Times
	keys, values [][]byte
	wireKeys     [][]byte
	wireValues   [][]byte
	protoKey     []*conntrackpb.Key
	protoValue   []*conntrackpb.Value
	bytesInAll   int
}

func newConntrackRig(t testing.TB, entries int) *conntrackRig {
	s := conntrackSchema()
	rig := &conntrackRig{times: Times{Ktime: conntrackBoot}}
	var err error
	if rig.enc, err = NewEncoder(s, nil); err != nil {
		t.Fatal(err)
	}
	if rig.dec, err = NewDecoder(s, s, nil); err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range entries {
		key, value := conntrackEntry(r)
		wireKey, err := rig.enc.AppendKey(nil, key)
		if err != nil {
			t.Fatal(err)
		}
		wireValue := rig.enc.AppendValue(nil, nil, value, &rig.times)
		k, v := conntrackProto(key, value, conntrackBoot)
		rig.keys, rig.values = append(rig.keys, key), append(rig.values, value)
		rig.wireKeys, rig.wireValues = append(rig.wireKeys, wireKey), append(rig.wireValues, wireValue)
		rig.protoKey, rig.protoValue = append(rig.protoKey, k), append(rig.protoValue, v)
		rig.bytesInAll += len(wireKey) + len(wireValue)
	}
	return rig
}

// conntrackProto converts an entry to generated messages, like code written for one map.
func conntrackProto(key, value []byte, ktime int64) (*conntrackpb.Key, *conntrackpb.Value) {
	le, be := binary.LittleEndian, binary.BigEndian
	trim := func(b []byte) []byte { return bytes.TrimRight(b, "\x00") }
	wall := func(b []byte) int64 {
		if ns := le.Uint64(b); ns != 0 {
			return int64(ns) + ktime
		}
		return 0
	}
	tcp := func(b []byte) *conntrackpb.Tcp {
		return &conntrackpb.Tcp{
			End: le.Uint32(b), MaxWin: le.Uint32(b[4:]), SynDelta: le.Uint32(b[8:]),
			Retrans: uint32(le.Uint16(b[12:])), Mss: uint32(le.Uint16(b[14:])), Scale: uint32(b[16]), State: uint32(b[17]),
		}
	}
	k := &conntrackpb.Key{
		Saddr: trim(key[:16]), Daddr: trim(key[16:32]),
		Sport: uint32(be.Uint16(key[32:])), Dport: uint32(be.Uint16(key[34:])),
		Zone: le.Uint32(key[36:]), Ident: le.Uint32(key[40:]), Proto: uint32(key[44]), Family: uint32(key[45]),
	}
	v := &conntrackpb.Value{
		Status: le.Uint32(value), Mark: le.Uint32(value[4:]),
		Created: wall(value[8:]), LastSeen: wall(value[16:]), Expires: wall(value[24:]),
		PacketsOrig: le.Uint64(value[32:]), BytesOrig: le.Uint64(value[40:]),
		PacketsReply: le.Uint64(value[48:]), BytesReply: le.Uint64(value[56:]),
		Nat: &conntrackpb.Nat{
			Saddr: trim(value[64:80]), Daddr: trim(value[80:96]),
			Sport: uint32(be.Uint16(value[96:])), Dport: uint32(be.Uint16(value[98:])), Flags: le.Uint32(value[100:]),
		},
		TcpOrig: tcp(value[104:124]), TcpReply: tcp(value[124:144]),
		Backend: le.Uint32(value[144:]), Service: le.Uint32(value[148:]), Mac: trim(value[152:158]),
		Tokens: le.Uint64(value[168:]),
	}
	return k, v
}

// TestCodecMatchesGeneratedCode checks that generated code decodes the encoder's bytes to the
// content of the struct, and encodes the same bytes.
func TestCodecMatchesGeneratedCode(t *testing.T) {
	rig := newConntrackRig(t, 200)
	marshal := proto.MarshalOptions{Deterministic: true}
	for i := range rig.keys {
		key, value := &conntrackpb.Key{}, &conntrackpb.Value{}
		if err := proto.Unmarshal(rig.wireKeys[i], key); err != nil {
			t.Fatal(err)
		}
		if err := proto.Unmarshal(rig.wireValues[i], value); err != nil {
			t.Fatal(err)
		}
		if !proto.Equal(key, rig.protoKey[i]) || !proto.Equal(value, rig.protoValue[i]) {
			t.Fatalf("decode with generated code: got %v %v, want %v %v",
				key, value, rig.protoKey[i], rig.protoValue[i])
		}
		wireKey, err := marshal.Marshal(rig.protoKey[i])
		if err != nil || !bytes.Equal(wireKey, rig.wireKeys[i]) {
			t.Fatalf("key: got %x, want %x as in generated code, error %v", rig.wireKeys[i], wireKey, err)
		}
		wireValue, err := marshal.Marshal(rig.protoValue[i])
		if err != nil || !bytes.Equal(wireValue, rig.wireValues[i]) {
			t.Fatalf("value: got %x, want %x as in generated code, error %v",
				rig.wireValues[i], wireValue, err)
		}
	}
}

// TestWireSize checks that a typical entry has at most half the size of its struct on the wire.
func TestWireSize(t *testing.T) {
	rig := newConntrackRig(t, 1000)
	if average := rig.bytesInAll / len(rig.keys); average > (48+176)/2 {
		t.Errorf("average wire size of an entry of 224 bytes: got %d, want at most 112", average)
	}
}

// TestNoAllocation checks that encoding and decoding an entry make no allocations.
func TestNoAllocation(t *testing.T) {
	rig := newConntrackRig(t, 1)
	buf := make([]byte, 0, rig.enc.MaxKey()+rig.enc.MaxValue())
	key, value := make([]byte, 48), make([]byte, 176)
	if n := testing.AllocsPerRun(100, func() {
		b, err := rig.enc.AppendKey(buf[:0], rig.keys[0])
		if err != nil {
			t.Fatal(err)
		}
		b = rig.enc.AppendValue(b, nil, rig.values[0], &rig.times)
		if err := rig.dec.Key(key, b[:len(rig.wireKeys[0])]); err != nil {
			t.Fatal(err)
		}
		if err := rig.dec.Value(value, nil, b[len(rig.wireKeys[0]):], &rig.times); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("allocations: got %v, want 0", n)
	}
	if !bytes.Equal(key, rig.keys[0]) || !bytes.Equal(value, rig.values[0]) {
		t.Error("decoded entry: differs from the encoded entry")
	}
}

// conntrackCases are the numbers of entries that a benchmark cycles through. With one entry, the
// processor predicts all branches. With many, the benchmark resembles real traffic.
var conntrackCases = []struct {
	name    string
	entries int
}{{"one", 1}, {"mixed", 256}}

func BenchmarkEncode(b *testing.B) {
	for _, c := range conntrackCases {
		rig := newConntrackRig(b, c.entries)
		buf := make([]byte, 0, 4096)
		b.Run(c.name+"/schema", func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				e := i % c.entries
				out, err := rig.enc.AppendKey(buf[:0], rig.keys[e])
				if err != nil {
					b.Fatal(err)
				}
				rig.enc.AppendValue(out, nil, rig.values[e], &rig.times)
			}
			b.ReportMetric(float64(rig.bytesInAll)/float64(c.entries), "wire-B")
		})
		b.Run(c.name+"/generated", func(b *testing.B) {
			b.ReportAllocs()
			var marshal proto.MarshalOptions
			for i := 0; b.Loop(); i++ {
				e := i % c.entries
				out, err := marshal.MarshalAppend(buf[:0], rig.protoKey[e])
				if err != nil {
					b.Fatal(err)
				}
				if _, err := marshal.MarshalAppend(out, rig.protoValue[e]); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkDecode(b *testing.B) {
	for _, c := range conntrackCases {
		rig := newConntrackRig(b, c.entries)
		key, value := make([]byte, 48), make([]byte, 176)
		b.Run(c.name+"/schema", func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				e := i % c.entries
				if err := rig.dec.Key(key, rig.wireKeys[e]); err != nil {
					b.Fatal(err)
				}
				if err := rig.dec.Value(value, nil, rig.wireValues[e], &rig.times); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(c.name+"/generated", func(b *testing.B) {
			b.ReportAllocs()
			var key conntrackpb.Key
			var value conntrackpb.Value
			for i := 0; b.Loop(); i++ {
				e := i % c.entries
				key.Reset()
				value.Reset()
				if err := proto.Unmarshal(rig.wireKeys[e], &key); err != nil {
					b.Fatal(err)
				}
				if err := proto.Unmarshal(rig.wireValues[e], &value); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
