package schema

import (
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"
)

// TestParseReference checks the setting of a reference.
func TestParseReference(t *testing.T) {
	for text, want := range map[string]string{
		"ct:id=ref:backends[address,port]":               "backends[address,port]",
		"ct:id=ref:backends[ value.address , tunnel.ip]": "backends[address,tunnel.ip]",
		"flows:@0:4=ref:reals[dst],name=pos,number=7":    "reals[dst]",
	} {
		set, err := ParseSetting(text)
		if err != nil || set.Reference != want {
			t.Errorf("%s: got %q and error %v, want %q", text, set.Reference, err, want)
		}
	}
	for _, text := range []string{"ct:id=ref:", "ct:id=ref:backends", "ct:id=ref:backends[]", "ct:id=ref:backends[a", "ct:id=ref:[a]", "ct:id=ref:backends[a,,b]"} {
		if _, err := ParseSetting(text); err == nil || !strings.Contains(err.Error(), "ref:MAP[FIELD,...]") {
			t.Errorf("%s: got error %v, want one with the form of a reference", text, err)
		}
	}
	for _, text := range []string{"ct:id=ref:backends[a],be", "ct:id=ref:backends[a],default=1", "ct:id=ref:backends[a]x", "ct:id=ref:backends[a],ref:b[c]"} {
		if _, err := ParseSetting(text); err == nil {
			t.Errorf("%s: got no error, want one", text)
		}
	}
	if set, _ := ParseSetting("flows:@0:4=ref:reals[dst],name=pos,number=7"); set.Name != "pos" || set.Number != 7 {
		t.Errorf("name and number: got %q and %d, want pos and 7", set.Name, set.Number)
	}
}

// referring returns a schema with a reference in the key and one in the value.
func referring() *Schema {
	return &Schema{
		Map: "ct",
		Key: &Message{Name: "k", Size: 6, Fields: []Field{
			{Name: "port", Number: 1, Size: 2, Kind: KindUint, Type: "__u16"},
			{Name: "service", Number: 2, Offset: 2, Size: 2, Kind: KindReference, Reference: "services[vip]", Type: "__u16"},
		}},
		Value: &Message{Name: "v", Size: 8, Fields: []Field{
			{Name: "backend", Number: 1, Size: 4, Kind: KindReference, Reference: "backends[address]", Type: "__u32"},
			{Name: "state", Number: 2, Offset: 4, Size: 1, Kind: KindUint, Type: "__u8"},
		}},
	}
}

// meaningsOf has the names of numbers by reference.
type meaningsOf map[string][]string

func (m meaningsOf) Name(uint32) (string, bool)  { return "", false }
func (m meaningsOf) Index(string) (uint32, bool) { return 0, false }
func (m meaningsOf) Reference(reference string) Links {
	if m[reference] == nil {
		return nil
	}
	return meaningList(m[reference])
}

type meaningList []string

func (l meaningList) Name(n uint32) (string, bool) {
	if int(n) >= len(l) || l[n] == "" {
		return "", false
	}
	return l[n], true
}

func (l meaningList) Index(name string) (uint32, bool) {
	i := slices.Index(l, name)
	return uint32(i), i > 0
}

// TestReferencesOnTheWire has two nodes with other numbers for the same meanings.
func TestReferencesOnTheWire(t *testing.T) {
	s := referring()
	a := meaningsOf{"services[vip]": {"", "vip=1", "vip=2"}, "backends[address]": {"", "address=10.0.0.1", "address=10.0.0.2"}}
	b := meaningsOf{"services[vip]": {"", "vip=2", "vip=1"}, "backends[address]": {"", "", "", "address=10.0.0.2"}}
	e, err := NewEncoder(s, a)
	if err != nil {
		t.Fatalf("NewEncoder: got error %v, want nil", err)
	}
	d, err := NewDecoder(s, s, b)
	if err != nil {
		t.Fatalf("NewDecoder: got error %v, want nil", err)
	}
	wire, err := e.AppendKey(nil, []byte{80, 0, 1, 0, 0, 0})
	key := make([]byte, 6)
	if err = errors.Join(err, d.Key(key, wire)); err != nil || string(key) != "\x50\x00\x02\x00\x00\x00" {
		t.Errorf("key: got %x and error %v, want 500002000000", key, err)
	}
	wire, err = e.AppendNamedValue(nil, key, []byte{2, 0, 0, 0, 7, 0, 0, 0}, nil)
	value := make([]byte, 8)
	if err = errors.Join(err, d.Value(value, key, wire, nil)); err != nil || string(value) != "\x03\x00\x00\x00\x07\x00\x00\x00" {
		t.Errorf("value: got %x and error %v, want 0300000007000000", value, err)
	}
	// 0 stands for no id. A number without a meaning, and a meaning without a number, are errors.
	if wire, err = e.AppendNamedValue(nil, key, make([]byte, 8), nil); err != nil || len(wire) != 0 {
		t.Errorf("value without an id: got %x and error %v, want none", wire, err)
	}
	if _, err := e.AppendNamedValue(nil, key, []byte{9, 0, 0, 0, 0, 0, 0, 0}, nil); !errors.Is(err, ErrReference) {
		t.Errorf("unknown number: got error %v, want ErrReference", err)
	}
	if _, err := e.AppendKey(nil, []byte{80, 0, 9, 0, 0, 0}); !errors.Is(err, ErrReference) {
		t.Errorf("unknown number in a key: got error %v, want ErrReference", err)
	}
	wire, _ = e.AppendNamedValue(nil, key, []byte{1, 0, 0, 0, 0, 0, 0, 0}, nil)
	if err := d.Value(value, key, wire, nil); !errors.Is(err, ErrReference) {
		t.Errorf("unknown meaning: got error %v, want ErrReference", err)
	}
	for name, text := range map[string]string{"a space": "a b", "a control character": "a\x1b", "a long text": strings.Repeat("x", MaxMeaning+1)} {
		wire := append(binary.AppendUvarint([]byte{0x0a}, uint64(len(text))), text...)
		if err := d.Value(value, key, wire, nil); !errors.Is(err, ErrMalformed) {
			t.Errorf("meaning with %s: got error %v, want ErrMalformed", name, err)
		}
	}
}

// TestReferencesOfOtherNodes checks that nodes with other settings refuse each other's map.
func TestReferencesOfOtherNodes(t *testing.T) {
	plain, other, renamed := referring(), referring(), referring()
	plain.Value.Fields[0].Kind, plain.Value.Fields[0].Reference = KindUint, ""
	other.Value.Fields[0].Reference = "backends[address,port]"
	renamed.Value.Fields[0].Reference = "backends_v3[address]"
	for name, c := range map[string]struct {
		peer *Schema
		want string
	}{
		"without the role": {plain, "field backend: reference here, uint32 at the sender"},
		"other fields":     {other, `field backend: reference to "address" here, to "address,port" at the sender`},
		"another name":     {renamed, ""},
	} {
		_, err := NewDecoder(c.peer, referring(), nil)
		if c.want == "" && err != nil || c.want != "" && (!errors.Is(err, ErrIncompatible) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: got error %v, want %q", name, err, c.want)
		}
	}
}

// TestReferenceSettings applies references to fields.
func TestReferenceSettings(t *testing.T) {
	base := func() *Schema {
		s := referring()
		for _, m := range []*Message{s.Key, s.Value} {
			for i := range m.Fields {
				m.Fields[i].Kind, m.Fields[i].Reference = KindUint, ""
			}
		}
		s.Value.Fields = append(s.Value.Fields, Field{Name: "list", Number: 3, Offset: 6, Size: 1, Count: 2, Kind: KindUint, Type: "__u8[2]"})
		return s
	}
	apply := func(s *Schema, settings ...string) error {
		var list []Setting
		for _, text := range settings {
			set, err := ParseSetting(text)
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, set)
		}
		return s.Apply(list)
	}
	s := base()
	if err := apply(s, "ct:key.service=ref:services[vip]", "ct:backend=ref:backends[address]"); err != nil {
		t.Fatalf("Apply: got error %v, want nil", err)
	}
	want := []ReferencePlace{{true, 2, 2, "services[vip]"}, {false, 0, 4, "backends[address]"}}
	if got := s.References(); !slices.Equal(got, want) {
		t.Errorf("References: got %v, want %v", got, want)
	}
	if !s.NamesInKey() || s.ComparedKey()[2] != 0 || s.ComparedKey()[0] != 0xff || s.Compared()[0] != 0 || s.Significant()[0] != 0xff {
		t.Errorf("masks: got names in key %t, compared %x and %x, significant %x, want references outside of the compared bits only",
			s.NamesInKey(), s.ComparedKey(), s.Compared(), s.Significant())
	}
	for _, c := range []struct{ setting, want string }{
		{"ct:list=ref:backends[address]", "it needs a single integer"},
		{"ct:other=ref:backends[address]", "unknown field"},
	} {
		if err := apply(base(), c.setting); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got error %v, want %q", c.setting, err, c.want)
		}
	}
	perCPU := base().PerCPU(2)
	if err := apply(perCPU, "ct:backend=ref:backends[address]"); err == nil || !strings.Contains(err.Error(), "per-CPU") {
		t.Errorf("per-CPU value: got error %v, want one", err)
	}
}
