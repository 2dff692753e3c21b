package schema

import (
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"github.com/cilium/ebpf/btf"
)

// flowFields are settings for a map without types, as one of xvs has.
var flowFields = []string{
	"flows:key.@0:4=ipv4,name=saddr", "flows:key.@4:4=ipv4,name=daddr", "flows:key.@8:2=be,port",
	"flows:@16:8=ktime,volatile,name=time", "flows:@2:6=mac", "flows:value.@40:4=ifindex",
}

func TestByteFields(t *testing.T) {
	s := FromSizes("flows", 12, 44)
	if err := s.Apply(settings(t, flowFields...)); err != nil {
		t.Fatal(err)
	}
	expect(t, s.Key, "flows_key", 12, `
saddr 1 @0 4 uint be,ipv4
daddr 5 @4 4 uint be,ipv4
at_8 9 @8 2 uint be,port
bytes_10 11 @10 2 bytes`)
	expect(t, s.Value, "flows_value", 44, `
bytes_0 1 @0 2 bytes
at_2 3 @2 6 bytes mac
bytes_8 9 @8 8 bytes
time 17 @16 8 time ktime,volatile
bytes_24 25 @24 16 bytes
at_40 41 @40 4 ifname ifindex`)
	if !s.Opaque {
		t.Error("a map without types is not opaque, want it so")
	}
	if err := s.Check(); err != nil {
		t.Error(err)
	}

	// Each byte arrives, and the time is that of the receiver's clock.
	enc, dec := newCodec(t, s, s)
	value := make([]byte, 44)
	for i := range value {
		value[i] = byte(i + 1)
	}
	binary.LittleEndian.PutUint64(value[16:], 5e9)
	binary.LittleEndian.PutUint32(value[40:], 2)
	later := codecTimes
	later.Ktime -= 3e9
	wire := enc.AppendValue(nil, nil, value, &codecTimes)
	got := make([]byte, 44)
	if err := dec.Value(got, nil, wire, &later); err != nil {
		t.Fatal(err)
	}
	binary.LittleEndian.PutUint64(value[16:], 8e9)
	if string(got) != string(value) {
		t.Errorf("value at the receiver: got %x, want %x", got, value)
	}
}

// TestByteFieldsPerCPU checks positions within one CPU's value, and fields beyond the numbers that protobuf reserves.
func TestByteFieldsPerCPU(t *testing.T) {
	s := FromSizes("m", 4, 20000).PerCPU(2)
	if err := s.Apply(settings(t, "m:@18998:1=volatile", "m:@18999:4=be,name=x")); err != nil {
		t.Fatal(err)
	}
	expect(t, s.Value, "m_value_cpus", 40000, `
cpu 1 @0 20000 message *2
  bytes_0 1 @0 18998 bytes
  at_18998 18999 @18998 1 uint volatile
  x 20000 @18999 4 uint be
  bytes_19003 20004 @19003 997 bytes`)
	if err := s.Check(); err != nil {
		t.Error(err)
	}
}

// TestOtherPositions: nodes that define other positions do not replicate, because the same name would mean other bytes.
func TestOtherPositions(t *testing.T) {
	of := func(texts ...string) *Schema {
		s := FromSizes("m", 8, 32)
		if err := s.Apply(settings(t, texts...)); err != nil {
			t.Fatal(err)
		}
		return s
	}
	a := of("m:@16:8=volatile")
	for _, b := range []*Schema{of(), of("m:@24:4=volatile"), of("m:@16:4=volatile"), of("m:@16:8=volatile", "m:key.@0:4=be"), of("m:@16:8=name=x")} {
		if _, err := NewDecoder(a, b, nil); !errors.Is(err, ErrIncompatible) {
			t.Errorf("decoder for other positions: got error %v, want ErrIncompatible", err)
		}
	}
	if _, err := NewDecoder(a, of("m:@16:8=be"), nil); err != nil {
		t.Errorf("decoder for the same positions: got error %v, want nil", err)
	}
}

// TestByteFieldsOfDrainedMap: the origin of drained sums keeps a number of its own.
func TestByteFieldsOfDrainedMap(t *testing.T) {
	s := FromSizes("m", 4, 8).WithOrigin(16)
	if err := s.Apply(settings(t, "m:key.@0:1=be", "m:key.@1:3=name=x", "m:@0:8=sum")); err == nil {
		t.Error("role be of a byte: got no error, want one")
	}
	s = FromSizes("m", 4, 8).WithOrigin(16)
	if err := errors.Join(s.Apply(settings(t, "m:key.@1:2=be", "m:@0:8=sum")), s.Check()); err != nil {
		t.Error(err)
	}
}

func TestByteFieldsRefused(t *testing.T) {
	for list, want := range map[string]string{
		"m:@0:8=ktime m:@4:4=be":       "value has two fields with byte 4",
		"m:@0:8=ktime m:@0:8=volatile": "two fields with byte 0",
		"m:@13:4=be":                   "value has field at_13, which ends at byte 17 of 16",
		"m:key.@8:8=be":                "key has field at_8, which ends at byte 16 of 8",
		"m:@0:6=ktime":                 "cannot have role ktime",
		"m:key.@0:8=ktime":             "cannot have role ktime in a key",
		"m:@0:4=name=a m:@4:4=name=a":  "two fields a",
		"m:bytes=volatile m:@0:4=be":   `unknown field "bytes"`,
		"m:bytes=name=x":               "cannot have name=x",
		"m:@x=be":                      "is not a position: write @OFFSET:SIZE",
		"m:@4=be":                      "is not a position",
		"m:@-1:4=be":                   "is not a position",
		"m:@4294967296:4=be":           "is not a position",
		"m:@0:0=be":                    "is not a position",
	} {
		err := FromSizes("m", 8, 16).Apply(settings(t, strings.Fields(list)...))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("apply %s: got error %v, want one with %q", list, err, want)
		}
	}
	if err := layout(t, "ct").Apply(settings(t, "ct:@0:8=ktime")); err == nil || !strings.Contains(err.Error(), "the map has types") {
		t.Errorf("apply a position to a map with types: got error %v, want one about its types", err)
	}
	for text, want := range map[string]Setting{
		"a:b:@0:8=be":        {Map: "a:b", Field: "@0:8", Roles: RoleBE},
		"a:key.@0:8=name=id": {Map: "a", Field: "key.@0:8", Name: "id"},
		"a@1:x=be":           {Map: "a@1", Field: "x", Roles: RoleBE},
	} {
		if got, err := ParseSetting(text); err != nil || got != want {
			t.Errorf("parse %s: got %+v, error %v, want %+v", text, got, err, want)
		}
	}
}

// TestAddressesInAggregates checks that any aggregate of the right size can be an address.
func TestAddressesInAggregates(t *testing.T) {
	u8 := &btf.Int{Name: "__u8", Size: 1}
	words := structOf("words", 16, member("a", 0, u32), member("b", 32, u32), member("c", 64, u32), member("d", 96, u32))
	octets := structOf("octets", 4, member("a", 0, u8), member("b", 8, u8), member("c", 16, u8), member("d", 24, u8))
	hardware := structOf("hardware", 6, member("a", 0, &btf.Int{Name: "__u16", Size: 2}), member("b", 16, &btf.Array{Type: u8, Nelems: 4}))
	value := structOf("v", 72, member("words", 0, words), member("octets", 128, octets), member("hardware", 160, hardware),
		member("two", 208, &btf.Array{Type: &btf.Int{Name: "__u16", Size: 2}, Nelems: 2}),
		member("many", 256, &btf.Array{Type: words, Nelems: 2}), member("v6", 512, u8))
	s, err := FromTypes("m", u32, value)
	if err != nil {
		t.Fatal(err)
	}
	original := lines(s.Value, "")
	roles := []string{"words=ipv6", "octets=ipv4", "hardware=mac", "two=ipv4", "many=ip=v6"}
	for i := range roles {
		roles[i] = "m:" + roles[i]
	}
	if err := s.Apply(settings(t, roles...)); err != nil {
		t.Fatal(err)
	}
	expect(t, s.Value, "v", 72, `
words 1 @0 16 bytes ipv6
octets 2 @16 4 bytes ipv4
hardware 3 @20 6 bytes mac
two 4 @26 4 bytes ipv4
many 5 @32 16 bytes *2 ip
v6 6 @64 1 uint`)
	if err := s.Check(); err != nil {
		t.Error(err)
	}
	for i := range roles {
		name, _, _ := strings.Cut(roles[i], "=")
		roles[i] = name + "=none"
	}
	if err := s.Apply(settings(t, roles...)); err != nil {
		t.Fatal(err)
	}
	if got := lines(s.Value, ""); strings.Join(got, "\n") != strings.Join(original, "\n") {
		t.Errorf("fields after none: got %q, want the original ones", got)
	}
}

func TestFamilyRefused(t *testing.T) {
	for setting, want := range map[string]string{
		"ct:key.saddr=ip=nothing":      `field key.saddr: family: unknown field "nothing"`,
		"ct:key.saddr=ip=ito":          "must be in the same half of an entry",
		"ct:nat_act.xip=ip=key.v6":     "must be in the same half of an entry",
		"ct:key.saddr=ip=daddr":        "must be a number",
		"ct:key.sport=ip=l4proto":      "cannot have role ip: it needs 16 bytes",
		"ct:key.saddr=ip=l4proto,ipv6": "at once",
	} {
		set := settings(t, setting)
		if err := layout(t, set[0].Map).Apply(set); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("apply %s: got error %v, want one with %q", setting, err, want)
		}
	}
	for _, text := range []string{"m:a=ip", "m:a=ip=", "m:a=ip=x,ip=y", "m:@0:1=name=1", "m:@0:1=name=a,name=b"} {
		if _, err := ParseSetting(text); err == nil {
			t.Errorf("parse %s: got no error, want one", text)
		}
	}
}
