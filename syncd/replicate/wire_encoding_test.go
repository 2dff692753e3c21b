package replicate

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/schema"
	"mapsync/syncd/table"
)

// TestUnknownFields checks that unknown fields are skipped. Invalid field numbers, and tags that
// are not in their shortest encoding, are errors.
func TestUnknownFields(t *testing.T) {
	tag := func(num uint64) []byte { return protowire.AppendVarint(nil, num<<3) }
	for name, c := range map[string]struct {
		field []byte
		size  int
	}{
		"a varint":                           {append(tag(15), 1), 2},
		"the highest number":                 {append(tag(uint64(protowire.MaxValidNumber)), 1), 6},
		"the highest number without a value": {tag(uint64(protowire.MaxValidNumber)), 0},
		"a number above the highest":         {append(tag(uint64(protowire.MaxValidNumber)+1), 1), 0},
		"number 0":                           {append(tag(0), 1), 0},
		"a tag that is too long":             {[]byte{0xf8, 0x00, 1}, 0},
		"no value":                           {tag(15), 0},
		"a truncated tag":                    {[]byte{0x80}, 0},
		"empty bytes":                        {[]byte{15<<3 | 2, 0}, 2},
		"truncated bytes":                    {[]byte{15<<3 | 2, 2, 1}, 0},
	} {
		if got := consumeUnknown(c.field); got != c.size {
			t.Errorf("%s: size: got %d, want %d", name, got, c.size)
		}
	}
}

// TestTruncatedBatchErrors checks that the errors of truncated batches name the byte.
func TestTruncatedBatchErrors(t *testing.T) {
	whole, err := proto.Marshal(stockBatch(1, 3, 300, 1).GetBatch())
	if err != nil {
		t.Fatal(err)
	}
	var b batch
	if err := b.parse(whole); err != nil || b.deltas != 1 {
		t.Fatalf("parse: got %v, %d deltas", err, b.deltas)
	}
	for _, last := range []byte{tagBatchMap, tagBatchDelta, tagBatchOwner, tagBatchOrigin, tagBatchPosition, tagBatchCaughtUp, 15 << 3} {
		err := b.parse(append(whole[:len(whole):len(whole)], last))
		if want := fmt.Sprintf("at byte %d of %d", len(whole), len(whole)+1); !errors.Is(err, errMalformed) || !strings.Contains(err.Error(), want) {
			t.Errorf("tag %d at the end: got %v, want %s", last, err, want)
		}
	}
	delta := []byte{tagBatchDelta, 1, tagKey} // a key without a size
	if err := b.parse(append(whole[:len(whole):len(whole)], delta...)); err != nil {
		t.Fatalf("parse a batch with an invalid delta: got %v, want no error", err)
	}
	err = b.forEachGroup(make([]wireDelta, 4), func([]wireDelta) error { return nil })
	if want := fmt.Sprintf("decode delta at byte %d of %d", len(whole), len(whole)+3); !errors.Is(err, errMalformed) || !strings.Contains(err.Error(), want) {
		t.Errorf("decode deltas: got %v, want %s", err, want)
	}
}

// TestFieldSizes checks that the computed sizes are those of the encoded fields.
func TestFieldSizes(t *testing.T) {
	for _, n := range []int{0, 1, 2, 127, 128, 16383, 16384} {
		if got, want := bytesSize(n), len(appendBytes(nil, tagKey, make([]byte, n))); got != want {
			t.Errorf("%d bytes: size: want %d, got %d", n, want, got)
		}
		if got, want := fieldSize(uint64(n)), len(appendField(nil, tagOwner, uint64(n))); got != want {
			t.Errorf("number %d: size: want %d, got %d", n, want, got)
		}
	}
}

// TestBatchOwners checks that a batch has each owner once, in the order of their first records.
func TestBatchOwners(t *testing.T) {
	o := newOutboundFixture(t, func(m *mapsyncv1.MapSubscription) { m.Observe = true; m.Owners = nil })
	y, z := table.Owner{Node: "y", Incarnation: 1}, table.Owner{Node: "z", Incarnation: 1}
	for k := range 6 {
		o.addRemote([]table.Owner{y, z}[k%2], 5, k)
	}
	for round := range 2 {
		b := &mapsyncv1.Batch{}
		for _, m := range o.sendPending() {
			if len(m.GetBatch().GetDeltas()) > 0 {
				b = m.GetBatch()
			}
		}
		if len(b.GetOwners()) != 2 || b.GetOwners()[0].GetNode() != "y" || b.GetOwners()[1].GetNode() != "z" || len(b.GetDeltas()) != 6 {
			t.Fatalf("round %d: got owners %v of %d records", round, b.GetOwners(), len(b.GetDeltas()))
		}
		for i, d := range b.GetDeltas() {
			if d.GetOwner() != uint32(i%2) {
				t.Errorf("round %d: record %d: got owner %d", round, i, d.GetOwner())
			}
		}
		for k := range 6 {
			o.addRemote([]table.Owner{y, z}[k%2], 6, k)
		}
	}
}

// TestUnmarshalErrors checks the errors of the codec.
func TestUnmarshalErrors(t *testing.T) {
	for _, c := range []struct {
		data []byte
		ok   bool
	}{{[]byte{0xff}, false}, {nil, true}} {
		var m mapsyncv1.SubscribeRequest
		if err := newCodec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(c.data)}, &m); (err == nil) != c.ok {
			t.Errorf("unmarshal %x: got %v", c.data, err)
		}
	}
}

// TestMaxSchemaSize checks schemas with the maximum size.
func TestMaxSchemaSize(t *testing.T) {
	sized := func(size int) *schema.Schema {
		s := oldSchema()
		s.Key.Name = ""
		room := size - proto.Size(toProto(s))
		for n := room; n > 0; n-- {
			s.Key.Name = strings.Repeat("k", n)
			if proto.Size(toProto(s)) <= size {
				break
			}
		}
		if got := proto.Size(toProto(s)); got != size {
			t.Fatalf("schema size: got %d bytes, want %d", got, size)
		}
		return s
	}
	const tooLarge = "more than 131072"
	for _, size := range []int{maxSchemaBytes, maxSchemaBytes + 1} {
		s := sized(size)
		_, err := fromProto("typed", toProto(s))
		if got := err != nil && strings.Contains(err.Error(), tooLarge); got != (size > maxSchemaBytes) {
			t.Errorf("read a schema of %d bytes: got %v", size, err)
		}
	}
}

// TestMaxTypeDepth checks that the depth of types is bounded in keys and values.
func TestMaxTypeDepth(t *testing.T) {
	nested := func(levels int) *mapsyncv1.MessageType {
		m := &mapsyncv1.MessageType{Name: "leaf", Size: 1, Fields: []*mapsyncv1.Field{{Name: "f", Number: 1, Size: 1, Kind: kindToProto(schema.KindUint)}}}
		for range levels {
			m = &mapsyncv1.MessageType{Name: "m", Size: 1, Fields: []*mapsyncv1.Field{{Name: "f", Number: 1, Size: 1, Kind: kindToProto(schema.KindMessage), Message: m}}}
		}
		return m
	}
	for name, change := range map[string]func(*mapsyncv1.Schema, *mapsyncv1.MessageType){
		"key":   func(s *mapsyncv1.Schema, m *mapsyncv1.MessageType) { s.Key = m },
		"value": func(s *mapsyncv1.Schema, m *mapsyncv1.MessageType) { s.Value = m },
	} {
		for _, levels := range []int{schema.MaxDepth, schema.MaxDepth + 1} {
			p := toProto(oldSchema())
			change(p, nested(levels))
			_, err := fromProto("typed", p)
			if deep := err != nil && strings.Contains(err.Error(), "nested more than"); deep != (levels > schema.MaxDepth) {
				t.Errorf("%s with %d levels: got %v", name, levels, err)
			}
		}
	}
}
