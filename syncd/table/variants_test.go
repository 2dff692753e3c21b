package table

import (
	"errors"
	"slices"
	"testing"
)

// byFirst are variants of values by their first byte: the rest of a value is a counter if it is 'c'.
func byFirst() *Variants {
	all := slices.Repeat([]byte{0xff}, valueSize)
	counter := make([]byte, valueSize)
	counter[0] = 0xff
	return &Variants{
		Of: func(_, value []byte) int {
			if value[0] == 'c' {
				return 1
			}
			return 0
		},
		Masks: []Masks{{Significant: all, Compared: all}, {Significant: counter, Compared: counter}},
	}
}

// TestVariants: whether a change is significant, and whether two values are equal, depends on the variants of both.
func TestVariants(t *testing.T) {
	r := newRig(t, func(o *Options) { o.Variants = byFirst() })
	at := int64(0)
	sent := func(value string) bool {
		head := r.tab.Stats().Head
		at += 1e9
		r.tab.Update(func(tx *Tx) { tx.Local(parseChange(r, "update k "+value+" syscall 0", at)) })
		return r.tab.Stats().Head != head
	}
	for _, change := range []struct {
		value string
		sent  bool
	}{{"a1", true}, {"a2", true}, {"a2", false}, {"c2", true}, {"c3", false}, {"c4", false}, {"a4", true}} {
		if got := sent(change.value); got != change.sent {
			t.Errorf("change to %s: got sent %v, want %v", change.value, got, change.sent)
		}
	}
	for _, test := range []struct {
		a, b  string
		equal bool
	}{{"a1", "a1", true}, {"a1", "a2", false}, {"c1", "c2", true}, {"c1", "a1", false}} {
		a, b := pad(test.a, valueSize), pad(test.b, valueSize)
		d := &r.tab.digester
		if got := r.tab.EqualCompared(nil, a, b); got != test.equal {
			t.Errorf("%s and %s: got equal %v, want %v", test.a, test.b, got, test.equal)
		}
		if got := d.hashValue(nil, a) == d.hashValue(nil, b); got != test.equal {
			t.Errorf("hashes of %s and %s: got equal %v, want %v", test.a, test.b, got, test.equal)
		}
	}
	if r.tab.usesChange() {
		t.Error("uses of all entries change them, want false: one variant has no counter")
	}
}

// TestVariantsHaveTheirOwnScope: nodes with other variants do not compare digests.
func TestVariantsHaveTheirOwnScope(t *testing.T) {
	with := newRig(t, func(o *Options) { o.Variants = byFirst() })
	without := newRig(t, func(*Options) {})
	if with.tab.DigestScope() == without.tab.DigestScope() {
		t.Error("scopes of digests: got the same, want different ones")
	}
	for _, v := range []*Variants{
		{},
		{Of: byFirst().Of},
		{Of: byFirst().Of, Masks: []Masks{{}}},
		{Of: byFirst().Of, Masks: []Masks{{Significant: make([]byte, 1), Compared: make([]byte, 1)}}},
		{Of: byFirst().Of, Masks: []Masks{{Significant: make([]byte, valueSize), Compared: slices.Repeat([]byte{1}, valueSize)}}},
	} {
		if _, err := New(Options{Self: self, KeySize: keySize, ValueSize: valueSize, Variants: v}); !errors.Is(err, ErrOptions) {
			t.Errorf("table with variants %+v: got error %v, want ErrOptions", v, err)
		}
	}
}
