package filter_test

import (
	"bytes"
	"slices"
	"testing"

	"mapsync/syncd/schema"
	"mapsync/syncd/schema/export"
	"mapsync/syncd/schema/filter"
	"mapsync/syncd/schema/schematest"

	"pgregory.net/rapid"
)

// FuzzParseKey: each key is among those of its text, if its fields have no arrays, times and floats. Other texts have no key or some.
func FuzzParseKey(f *testing.F) {
	for _, text := range []string{"{}", "{saddr=10.0.0.1 dport=443}", "{a{b=1} c=2}", "}", "{a", `{comm="a } b"}`, "0102", "{a{a{a", "{}}"} {
		key, _ := schematest.Entry()
		f.Add(text, key)
	}
	schemas := []*schema.Schema{schematest.Conntrack(), schematest.PerCPU(), schematest.Rich(), schema.FromSizes("m", 8, 8)}
	f.Fuzz(func(t *testing.T, text string, key []byte) {
		for _, s := range schemas {
			for _, found := range filter.ParseKey(s, links, text) {
				if len(found) != s.Key.Size {
					t.Fatalf("%q: got a key of %d bytes, want %d", text, len(found), s.Key.Size)
				}
			}
			if len(key) != s.Key.Size {
				continue
			}
			printed := string(export.NewPrinter(s, links).AppendKey(nil, key))
			for _, found := range filter.ParseKey(s, links, printed) {
				if len(found) != s.Key.Size {
					t.Fatalf("%q: got a key of %d bytes, want %d", printed, len(found), s.Key.Size)
				}
			}
		}
	})
}

// TestParseKey: a key is among those of its text.
func TestParseKey(t *testing.T) {
	s := schematest.Conntrack()
	printer := export.NewPrinter(s, links)
	rapid.Check(t, func(t *rapid.T) {
		key := rapid.SliceOfN(rapid.Byte(), s.Key.Size, s.Key.Size).Draw(t, "key")
		text := string(printer.AppendKey(nil, key))
		same := func(b []byte) bool { return string(printer.AppendKey(nil, b)) == text }
		if found := filter.ParseKey(s, links, text); !slices.ContainsFunc(found, same) {
			t.Fatalf("keys of %s: got %x, want one with this text, such as %x", text, found, key)
		}
	})
	opaque := schema.FromSizes("m", 3, 1)
	if found := filter.ParseKey(opaque, nil, "01ff00"); len(found) != 1 || !bytes.Equal(found[0], []byte{1, 0xff, 0}) {
		t.Errorf("key in hex: got %x, want 01ff00", found)
	}
	for _, text := range []string{"", "01ff", "{saddr=10.0.0.1", "{saddr=10.0.0.1}}", "{nonsense=1}", "{saddr}", "saddr=10.0.0.1"} {
		if found := filter.ParseKey(s, links, text); len(found) > 0 {
			t.Errorf("keys of %q: got %x, want none", text, found)
		}
	}
}
