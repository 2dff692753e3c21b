package schema

import (
	"bytes"
	"testing"
)

// TestCompared checks that the masks exclude bits that differ between nodes with the same schema
// and version.
func TestCompared(t *testing.T) {
	s := &Schema{
		Map: "ct",
		Key: &Message{Name: "k", Size: 8, Fields: []Field{
			{Name: "addr", Number: 1, Offset: 0, Size: 4, Kind: KindUint},
			{Name: "link", Number: 2, Offset: 4, Size: 4, Kind: KindIfname, Roles: RoleIfindex},
		}},
		Value: &Message{Name: "v", Size: 40, Fields: []Field{
			{Name: "seen", Number: 1, Offset: 0, Size: 8, Kind: KindTime, Roles: RoleKtime},
			{Name: "packets", Number: 2, Offset: 8, Size: 8, Kind: KindUint, Roles: RoleVolatile},
			{Name: "state", Number: 3, Offset: 16, Size: 1, BitOffset: 0, BitSize: 4, Kind: KindUint},
			{Name: "out", Number: 4, Offset: 20, Size: 4, Kind: KindIfname, Roles: RoleIfindex},
			{Name: "own", Number: 5, Offset: 24, Size: 4, Kind: KindUint, Roles: RoleLocal},
			{Name: "in", Number: 6, Offset: 28, Size: 8, Kind: KindMessage, Message: &Message{Name: "in", Size: 8, Fields: []Field{
				{Name: "a", Number: 1, Offset: 0, Size: 4, Kind: KindUint},
				{Name: "b", Number: 2, Offset: 4, Size: 4, Kind: KindUint, Roles: RoleVolatile},
			}}},
			{Name: "lock", Number: 7, Offset: 36, Size: 4, Kind: KindNone},
		}},
	}
	if err := s.Check(); err != nil {
		t.Fatal(err)
	}
	value := make([]byte, 40)
	value[16] = 0x0f
	copy(value[28:32], []byte{0xff, 0xff, 0xff, 0xff})
	if got := s.Compared(); !bytes.Equal(got, value) {
		t.Errorf("Compared: got %x, want %x", got, value)
	}
	if got, want := s.ComparedKey(), []byte{0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0}; !bytes.Equal(got, want) {
		t.Errorf("ComparedKey: got %x, want %x", got, want)
	}
	significant, carried := s.Significant(), s.Carried()
	for i, m := range s.Compared() {
		if m&^significant[i] != 0 || m&^carried[i] != 0 {
			t.Errorf("byte %d: compared, want also significant and carried", i)
		}
	}
}
