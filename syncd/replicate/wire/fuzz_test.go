package wire

import (
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/schema"
	"mapsync/syncd/schema/schematest"
)

// FuzzBatch passes data to this package's decoder. The stock decoder accepts everything that this
// decoder accepts, and both decoders agree on its meaning.
func FuzzBatch(f *testing.F) {
	small := richBatch() // without large values, which slow the search down
	small.Owners, small.Deltas = small.GetOwners()[1:], small.GetDeltas()[:4]
	f.Add(encoded(f, small))
	f.Add(encoded(f, &mapsyncv1.Batch{Map: 1, Origin: &mapsyncv1.Incarnation{Node: "x", Number: 1}}))
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := decoded(data)
		if err != nil {
			return
		}
		var stock mapsyncv1.Batch
		if err := proto.Unmarshal(data, &stock); err != nil {
			t.Fatalf("unmarshal with the stock decoder: %v", err)
		}
		again, err := decoded(encoded(t, &stock))
		if err != nil {
			t.Fatalf("decode the canonical form: %v", err)
		}
		// protobuf merges the fields of several origins. This decoder uses the last origin.
		got.Origin = stock.GetOrigin()
		if want := summary(&stock); summary(got) != want || summary(again) != want {
			t.Fatalf("decode: got %s, the canonical form %s, want both as the stock decoder %s", summary(got), summary(again), want)
		}
	})
}

// unionSchema returns a schema with a union inside a member of another one.
func unionSchema() *schema.Schema {
	member := func(name string, number int, fields ...schema.Field) schema.Field {
		return schema.Field{Name: name, Number: number, Size: 8, Kind: schema.KindMessage, Message: &schema.Message{Name: name, Size: 8, Fields: fields}}
	}
	union := func(number int, members ...schema.Field) schema.Field {
		return schema.Field{Name: "u", Number: number, Size: 8, Kind: schema.KindUnion, Message: &schema.Message{Name: "u", Size: 8, Fields: members}}
	}
	at := schema.Field{Name: "at", Number: 1, Size: 8, Kind: schema.KindTime, Roles: schema.RoleKtime}
	bytes := schema.Field{Name: "b", Number: 1, Size: 8, Kind: schema.KindBytes}
	return &schema.Schema{
		Map: testMap, Key: &schema.Message{Name: "k", Size: 4, Fields: []schema.Field{{Name: "id", Number: 1, Size: 4, Kind: schema.KindUint}}},
		Value: &schema.Message{Name: "v", Size: 8, Fields: []schema.Field{union(1, member("t", 1, at), member("o", 2, union(3, member("x", 1, bytes), member("y", 2, at))))}},
	}
}

// FuzzSchema has a peer send any schema, in both directions, and any message by that schema.
func FuzzSchema(f *testing.F) {
	local, times := schematest.Rich(), schema.Times{Ktime: 1e18, Boottime: 1e18, JiffiesAt: 1e18, Tick: 4e6}
	e, err := schema.NewEncoder(local, interfaces)
	if err != nil {
		f.Fatalf("new encoder: got error %v, want nil", err)
	}
	key, value := schematest.RichEntry(3)
	if key, err = e.AppendKey(nil, key); err != nil {
		f.Fatalf("encode key: got error %v, want nil", err)
	}
	value = e.AppendValue(nil, nil, value, &times)
	for _, s := range []*schema.Schema{schematest.Rich(), schematest.OldVersion(), schematest.NewVersion(), perCPU(), schematest.InterfaceKey(), schema.FromSizes("x", 8, 133), unionSchema()} {
		f.Add(encoded(f, SchemaToProto(s)), key, value)
	}
	f.Fuzz(func(t *testing.T, data, key, value []byte) {
		var p mapsyncv1.Schema
		if proto.Unmarshal(data, &p) != nil {
			return
		}
		theirs, err := SchemaFromProto(testMap, &p)
		if err != nil {
			return
		}
		again, err := SchemaFromProto(testMap, SchemaToProto(theirs))
		if err != nil || !schema.Equal(theirs, again) {
			t.Fatalf("schema: got a change after encoding and decoding: %v, want no change and no error", err)
		}
		for _, ours := range []*schema.Schema{local, theirs} {
			d, err := schema.NewDecoder(theirs, ours, interfaces)
			if err != nil {
				continue
			}
			k, v := make([]byte, ours.Key.Size), make([]byte, ours.Value.Size)
			_, _ = d.Key(k, key), d.Value(v, nil, value, &times)
			for _, r := range d.Keep() {
				if r.Offset < 0 || r.Size < 1 || r.Offset+r.Size > len(v) {
					t.Fatalf("keep: got %+v of %d bytes, want ranges of at least 1 byte inside the value", r, len(v))
				}
			}
		}
		if e, err := schema.NewEncoder(theirs, interfaces); err == nil && theirs.Value.Size < 1<<12 {
			e.AppendValue(nil, nil, make([]byte, theirs.Value.Size), &times)
		}
		_, _ = schema.NewDecoder(local, theirs, interfaces)
	})
}

// interfaces are the interfaces of a node.
var interfaces = links{"lo", "eth0"}

// links are the names of interfaces with the indexes 1, 2 and so on.
type links []string

func (l links) Name(index uint32) (string, bool) {
	if index == 0 || int(index) > len(l) {
		return "", false
	}
	return l[index-1], true
}

func (l links) Index(name string) (uint32, bool) {
	i := slices.Index(l, name)
	return uint32(i + 1), i >= 0
}
