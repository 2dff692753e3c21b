package export_test

import (
	"fmt"
	"testing"

	"mapsync/syncd/schema"
	"mapsync/syncd/schema/export"
)

// TestFamilyOfAddress checks the text of addresses whose family is in another field. Without it, the first two would
// be IPv6 and IPv4.
func TestFamilyOfAddress(t *testing.T) {
	s := &schema.Schema{
		Map: "m",
		Key: &schema.Message{Name: "k", Size: 17, Fields: []schema.Field{
			{Name: "addr", Number: 1, Size: 16, Kind: schema.KindBytes, Type: "__be32[4]"},
			{Name: "v6", Number: 2, Offset: 16, Size: 1, Kind: schema.KindUint, Type: "__u8"},
		}},
		Value: &schema.Message{Name: "v", Size: 4, Fields: []schema.Field{{Name: "n", Number: 1, Size: 4, Kind: schema.KindUint, Type: "__u32"}}},
	}
	set, err := schema.ParseSetting("m:key.addr=ip=v6")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Apply([]schema.Setting{set}); err != nil {
		t.Fatal(err)
	}
	p := export.NewPrinter(s, nil)
	for _, test := range []struct {
		addr   []byte
		family byte
		want   string
	}{
		{[]byte{0}, 0, "0.0.0.0"},
		{[]byte{0x20, 1, 0xd, 0xb8}, 1, "2001:db8::"},
		{[]byte{10, 0, 0, 1}, 0, "10.0.0.1"},
		{[]byte{10, 0, 0, 1}, 2, "10.0.0.1"},
		{[]byte{10, 0, 0, 1}, 4, "10.0.0.1"},
		{[]byte{0}, 10, "::"},
		{[]byte{10, 0, 0, 1, 1}, 0, "a00:1:100::"}, // no IPv4 address, in spite of its family
	} {
		key := make([]byte, 17)
		copy(key, test.addr)
		key[16] = test.family
		equal(t, "JSON", string(p.AppendJSONKey(nil, key)), fmt.Sprintf(`{"addr":%q,"v6":%d}`, test.want, test.family))
	}
}
