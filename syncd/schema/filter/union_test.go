package filter

import (
	"testing"

	"github.com/cilium/ebpf/btf"

	"mapsync/syncd/schema"
)

// TestConditionOnMember: a condition on a member of a union does not match an entry that has another member with the same bytes.
func TestConditionOnMember(t *testing.T) {
	u32 := &btf.Int{Name: "__u32", Size: 4}
	union := &btf.Union{Size: 4, Members: []btf.Member{{Name: "a", Type: u32}, {Name: "b", Type: u32}}}
	value := &btf.Struct{Name: "v", Size: 8, Members: []btf.Member{{Name: "type", Type: u32}, {Name: "u", Type: union, Offset: 32}}}
	s, err := schema.FromTypes("m", u32, value)
	if err != nil {
		t.Fatal(err)
	}
	var list []schema.Setting
	for _, text := range []string{"m:u=as:a when type=1", "m:u=as:b"} {
		set, err := schema.ParseSetting(text)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, set)
	}
	if err := s.Apply(list); err != nil {
		t.Fatal(err)
	}
	f, err := Parse(s, "u.a=7")
	if err != nil {
		t.Fatal(err)
	}
	for kind, want := range map[byte]bool{1: true, 2: false} {
		if got := f.Match(make([]byte, 4), []byte{kind, 0, 0, 0, 7, 0, 0, 0}, nil); got != want {
			t.Errorf("u.a=7 of type %d: got match %v, want %v", kind, got, want)
		}
	}
}
