package wire

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"

	mapsyncv1 "mapsync/proto/mapsync/v1"
)

// summary returns the content of a batch as text, without details of its encoding.
func summary(m *mapsyncv1.Batch) string {
	s := fmt.Sprint(m.GetMap(), m.GetPreviousPosition(), m.GetPosition(), m.GetCaughtUp(), m.GetResent(), m.GetRequested())
	s += fmt.Sprint(m.GetOrigin().GetNode(), m.GetOrigin().GetNumber())
	for _, o := range m.GetOwners() {
		s += fmt.Sprint(" ", o.GetNode(), o.GetNumber())
	}
	for _, d := range m.GetDeltas() {
		s += fmt.Sprintf(" %x=%x %d %d %d", d.GetKey(), d.GetValue(), d.GetVersion(), d.GetOwner(), d.GetOperation())
	}
	return s
}

// decoded decodes a batch with this package's decoder, and returns it as a message.
func decoded(data []byte) (*mapsyncv1.Batch, error) {
	var b Batch
	if err := b.Parse(data); err != nil {
		return nil, err
	}
	m := &mapsyncv1.Batch{
		Map: b.Index, Origin: &mapsyncv1.Incarnation{Node: b.Origin.Node, Number: b.Origin.Incarnation},
		PreviousPosition: b.PreviousPosition, Position: b.Position, CaughtUp: b.CaughtUp, Resent: b.Resent, Requested: b.Requested,
	}
	for _, w := range b.Owners {
		m.Owners = append(m.Owners, &mapsyncv1.Incarnation{Node: string(w.Node), Number: w.Number})
	}
	err := b.ForEachGroup(make([]Delta, 2), func(deltas []Delta) error {
		for _, d := range deltas {
			m.Deltas = append(m.Deltas, &mapsyncv1.Delta{Key: d.Key, Value: d.Value, Version: d.Version, Owner: d.Owner, Operation: d.Operation})
		}
		return nil
	})
	if err == nil && len(m.GetDeltas()) != b.DeltaCount {
		err = fmt.Errorf("%d deltas, %d counted", len(m.GetDeltas()), b.DeltaCount)
	}
	return m, err
}

// richBatch returns a batch with numbers and lengths of each encoded size.
func richBatch() *mapsyncv1.Batch {
	b := &mapsyncv1.Batch{
		Map: 300, Origin: &mapsyncv1.Incarnation{Node: "x", Number: 1 << 60}, PreviousPosition: 127, Position: 1 << 40,
		CaughtUp: true, Resent: true, Requested: true,
		Owners: []*mapsyncv1.Incarnation{{Node: strings.Repeat("n", MaxName), Number: 7}, {Node: "y", Number: 1}, {Node: "z"}},
	}
	for _, size := range []int{0, 1, 127, 128, 129, 16383, 16384, 20000} {
		b.Deltas = append(b.Deltas, &mapsyncv1.Delta{
			Key: []byte("key"), Value: make([]byte, size), Version: uint64(size) << 40, Owner: uint32(size), Operation: 1,
		})
	}
	return b
}

// TestDecoderMatchesStockDecoder checks that this package's decoder reads batches like the stock
// decoder, with lengths of each size, unknown fields and any order of fields.
func TestDecoderMatchesStockDecoder(t *testing.T) {
	data := encoded(t, richBatch())
	unknown := protowire.AppendBytes(protowire.AppendTag(nil, 99, protowire.BytesType), []byte("later"))
	unknown = protowire.AppendVarint(protowire.AppendTag(unknown, 15, protowire.VarintType), 1<<50)
	delta := encoded(t, &mapsyncv1.Delta{Key: []byte("k"), Version: 3, Operation: 2})
	owner := encoded(t, &mapsyncv1.Incarnation{Node: "w", Number: 9})
	nested := func(tag byte, content ...[]byte) []byte {
		return protowire.AppendBytes([]byte{tag}, slices.Concat(content...))
	}
	for name, data := range map[string][]byte{
		"all":               data,
		"nothing":           {},
		"unknown first":     slices.Concat(unknown, data),
		"unknown last":      slices.Concat(data, unknown),
		"deltas first":      slices.Concat(nested(tagBatchDelta, delta), data),
		"unknown in deltas": slices.Concat(data, nested(tagBatchDelta, unknown, delta, unknown)),
		"unknown in owners": slices.Concat(data, nested(tagBatchOwner, unknown, owner, unknown)),
		"flags off":         slices.Concat(data, []byte{tagBatchCaughtUp, 0, tagBatchResent, 0, tagBatchRequested, 0}),
		"flags of 2":        {tagBatchCaughtUp, 2, tagBatchResent, 0x80, 1, tagBatchRequested, 2, tagBatchOrigin, 3, tagNode, 1, 'x'},
		"last one counts":   slices.Concat(data, []byte{tagBatchMap, 5, tagBatchPosition, 6, tagBatchPrevious, 7}),
	} {
		var stock mapsyncv1.Batch
		if err := proto.Unmarshal(data, &stock); err != nil {
			t.Fatalf("%s: unmarshal: %v", name, err)
		}
		got, err := decoded(data)
		if err != nil && name != "nothing" || name != "nothing" && summary(got) != summary(&stock) {
			t.Errorf("%s: decode: error %v\n got %.300s\nwant %.300s", name, err, summary(got), summary(&stock))
		}
	}
}

func encoded(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatalf("marshal: got error %v, want nil", err)
	}
	return b
}

// TestTruncatedBatches truncates batches, deltas and owners. The decoder fails exactly when the
// stock decoder fails.
func TestTruncatedBatches(t *testing.T) {
	small := richBatch()
	small.Deltas = small.Deltas[:5]
	small.Owners = small.Owners[1:]
	whole := encoded(t, small)
	nested := func(tag byte, data []byte) []byte { return protowire.AppendBytes([]byte{tag}, data) }
	delta := encoded(t, &mapsyncv1.Delta{Key: []byte("key"), Value: make([]byte, 200), Version: 3, Owner: 300, Operation: 1})
	delta = append(delta, 0xfa, 1, 3, 'a', 'b', 'c') // an unknown field
	owner := append(encoded(t, &mapsyncv1.Incarnation{Node: "w", Number: 9}), 0xfa, 1, 3, 'a', 'b', 'c')
	check := func(what string, data []byte) {
		t.Helper()
		stock := proto.Unmarshal(data, &mapsyncv1.Batch{})
		_, err := decoded(data)
		if (err != nil) != (stock != nil) || err != nil && !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: decode: got error %v, stock decoder %v, want errors of both or of none, and ErrMalformed", what, err, stock)
		}
	}
	origin := encoded(t, &mapsyncv1.Batch{Origin: &mapsyncv1.Incarnation{Node: "x", Number: 1}})
	for i := range whole {
		check(fmt.Sprintf("a batch of %d bytes cut to %d", len(whole), i), whole[:i])
	}
	for i := range delta {
		check(fmt.Sprintf("a delta of %d bytes cut to %d", len(delta), i), append(slices.Clone(origin), nested(tagBatchDelta, delta[:i])...))
	}
	for i := 3; i < len(owner); i++ { // an owner without a name is invalid
		check(fmt.Sprintf("an owner of %d bytes cut to %d", len(owner), i), append(slices.Clone(origin), nested(tagBatchOwner, owner[:i])...))
	}
	for name, data := range map[string][]byte{
		"field number 0":                               {0x00, 1},
		"a tag that is too long":                       {0x8a, 0x00, 1, 'x'},
		"a field that is too long":                     {0xfa, 1, 0x7f},
		"an end of a group":                            {0x7c},
		"a truncated number of an owner":               nested(tagBatchOwner, []byte{tagNode, 1, 'x', tagNumber, 1}),
		"a truncated version":                          nested(tagBatchDelta, []byte{tagVersion, 1, 2, 3}),
		"an owner without a name":                      nested(tagBatchOwner, nil),
		"a name that is too long":                      nested(tagBatchOwner, nested(tagNode, make([]byte, MaxName+1))),
		"a name that is not UTF-8":                     nested(tagBatchOwner, []byte{tagNode, 1, 0xff}),
		"a name that is not UTF-8, before a valid one": nested(tagBatchOwner, []byte{tagNode, 1, 0xff, tagNode, 1, 'x'}),
	} {
		if _, err := decoded(append(slices.Clone(origin), data...)); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: decode: got %v, want ErrMalformed", name, err)
		}
	}
	broken := errors.New("broken")
	var b Batch
	if err := b.Parse(whole); err != nil {
		t.Fatalf("parse batch: got error %v, want nil", err)
	}
	// The last group is not full.
	for _, size := range []int{2, b.DeltaCount + 1} {
		if err := b.ForEachGroup(make([]Delta, size), func([]Delta) error { return broken }); !errors.Is(err, broken) {
			t.Errorf("groups of %d: got %v, want the error of fn", size, err)
		}
	}
}

// TestBatchDetection checks which messages take the fast path for a single batch.
func TestBatchDetection(t *testing.T) {
	m := encoded(t, &mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Batch{Batch: richBatch()}})
	if data, ok := BatchPayload(m); !ok || len(data) == 0 {
		t.Error("message with a batch: got not recognised, want recognised")
	}
	for name, data := range map[string][]byte{"nothing": nil, "more": append(slices.Clone(m), 0x7a, 0), "less": m[:len(m)-1], "another": {0x0a, 0}} {
		if _, ok := BatchPayload(data); ok {
			t.Errorf("%s: got recognised as a batch, want not recognised", name)
		}
	}
}

// TestDecodeStockEncodedBatch decodes random batches of the stock encoder with this package's decoder.
func TestDecodeStockEncodedBatch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &mapsyncv1.Batch{
			Map:              rapid.Uint32().Draw(t, "map"),
			Origin:           drawOwner(t),
			PreviousPosition: rapid.Uint64().Draw(t, "previous"),
			Position:         rapid.Uint64().Draw(t, "position"),
			CaughtUp:         rapid.Bool().Draw(t, "caught up"),
		}
		for range rapid.IntRange(0, 4).Draw(t, "owners") {
			m.Owners = append(m.Owners, drawOwner(t))
		}
		for range rapid.IntRange(0, 20).Draw(t, "deltas") {
			m.Deltas = append(m.Deltas, &mapsyncv1.Delta{
				Key:       rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "key"),
				Value:     rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "value"),
				Version:   rapid.Uint64().Draw(t, "version"),
				Owner:     rapid.Uint32().Draw(t, "owner"),
				Operation: mapsyncv1.Operation(rapid.Int32().Draw(t, "operation")),
			})
		}
		data, err := proto.Marshal(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Batch{Batch: m}})
		if err != nil {
			t.Fatalf("marshal: got error %v, want nil", err)
		}
		inner, ok := BatchPayload(data)
		if !ok {
			t.Fatal("BatchPayload: a batch was not recognised, want it recognised")
		}
		got, err := decoded(inner)
		if err != nil {
			t.Fatalf("decode batch: got error %v, want nil", err)
		}
		if diff := cmp.Diff(m, got, protocmp.Transform()); diff != "" {
			t.Fatalf("batch (-want +got):\n%s", diff)
		}
	})
}

func drawOwner(t *rapid.T) *mapsyncv1.Incarnation {
	return &mapsyncv1.Incarnation{
		Node:   rapid.StringOfN(rapid.RuneFrom(nil, unicode.L, unicode.M, unicode.N, unicode.P, unicode.S), 1, 60, MaxName).Draw(t, "node"),
		Number: rapid.Uint64().Draw(t, "number"),
	}
}

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
	whole, err := proto.Marshal(&mapsyncv1.Batch{
		Map: 1, Origin: &mapsyncv1.Incarnation{Node: "x", Number: 1}, PreviousPosition: 3, Position: 300,
		Owners: []*mapsyncv1.Incarnation{{Node: "x", Number: 1}}, CaughtUp: true,
		Deltas: []*mapsyncv1.Delta{{Key: []byte("k"), Value: []byte("v"), Version: 5, Operation: 1}},
	})
	if err != nil {
		t.Fatalf("marshal: got error %v, want nil", err)
	}
	var b Batch
	if err := b.Parse(whole); err != nil || b.DeltaCount != 1 || b.Size() != len(whole) {
		t.Fatalf("parse: got %v, %d deltas in %d bytes, want nil, 1, %d", err, b.DeltaCount, b.Size(), len(whole))
	}
	for _, last := range []byte{tagBatchMap, tagBatchDelta, tagBatchOwner, tagBatchOrigin, tagBatchPosition, tagBatchCaughtUp, 15 << 3} {
		err := b.Parse(append(whole[:len(whole):len(whole)], last))
		if want := fmt.Sprintf("at byte %d of %d", len(whole), len(whole)+1); !errors.Is(err, ErrMalformed) || !strings.Contains(err.Error(), want) {
			t.Errorf("tag %d at the end: got %v, want %s", last, err, want)
		}
	}
	delta := []byte{tagBatchDelta, 1, tagKey} // a key without a size
	if err := b.Parse(append(whole[:len(whole):len(whole)], delta...)); err != nil {
		t.Fatalf("parse a batch with an invalid delta: got %v, want no error", err)
	}
	err = b.ForEachGroup(make([]Delta, 4), func([]Delta) error { return nil })
	if want := fmt.Sprintf("decode delta at byte %d of %d", len(whole), len(whole)+3); !errors.Is(err, ErrMalformed) || !strings.Contains(err.Error(), want) {
		t.Errorf("decode deltas: got %v, want %s", err, want)
	}
}
