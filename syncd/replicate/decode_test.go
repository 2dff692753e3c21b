package replicate

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

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

// decodedBatch decodes a batch with this package's decoder, and returns it as a message.
func decodedBatch(data []byte) (*mapsyncv1.Batch, error) {
	var b batch
	if err := b.parse(data); err != nil {
		return nil, err
	}
	m := &mapsyncv1.Batch{
		Map: b.index, Origin: &mapsyncv1.Incarnation{Node: b.origin.Node, Number: b.origin.Incarnation},
		PreviousPosition: b.previousPosition, Position: b.position, CaughtUp: b.caughtUp, Resent: b.resent, Requested: b.requested,
	}
	for _, w := range b.owners {
		m.Owners = append(m.Owners, &mapsyncv1.Incarnation{Node: string(w.node), Number: w.number})
	}
	err := b.forEachGroup(make([]wireDelta, 2), func(deltas []wireDelta) error {
		for _, d := range deltas {
			m.Deltas = append(m.Deltas, &mapsyncv1.Delta{Key: d.key, Value: d.value, Version: d.version, Owner: d.owner, Operation: d.operation})
		}
		return nil
	})
	if err == nil && len(m.GetDeltas()) != b.deltas {
		err = fmt.Errorf("%d deltas, %d counted", len(m.GetDeltas()), b.deltas)
	}
	return m, err
}

// richBatch returns a batch with numbers and lengths of each encoded size.
func richBatch() *mapsyncv1.Batch {
	b := &mapsyncv1.Batch{
		Map: 300, Origin: &mapsyncv1.Incarnation{Node: "x", Number: 1 << 60}, PreviousPosition: 127, Position: 1 << 40,
		CaughtUp: true, Resent: true, Requested: true,
		Owners: []*mapsyncv1.Incarnation{{Node: strings.Repeat("n", maxNodeName), Number: 7}, {Node: "y", Number: 1}, {Node: "z"}},
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
		got, err := decodedBatch(data)
		if err != nil && name != "nothing" || name != "nothing" && summary(got) != summary(&stock) {
			t.Errorf("%s: decode: error %v\n got %.300s\nwant %.300s", name, err, summary(got), summary(&stock))
		}
	}
}

func encoded(t *testing.T, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
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
		_, err := decodedBatch(data)
		if (err != nil) != (stock != nil) || err != nil && !errors.Is(err, errMalformed) {
			t.Errorf("%s: decode: got error %v, stock decoder %v", what, err, stock)
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
		"a name that is too long":                      nested(tagBatchOwner, nested(tagNode, make([]byte, maxNodeName+1))),
		"a name that is not UTF-8":                     nested(tagBatchOwner, []byte{tagNode, 1, 0xff}),
		"a name that is not UTF-8, before a valid one": nested(tagBatchOwner, []byte{tagNode, 1, 0xff, tagNode, 1, 'x'}),
	} {
		if _, err := decodedBatch(append(slices.Clone(origin), data...)); !errors.Is(err, errMalformed) {
			t.Errorf("%s: decode: got %v, want errMalformed", name, err)
		}
	}
	broken := errors.New("broken")
	var b batch
	if err := b.parse(whole); err != nil {
		t.Fatal(err)
	}
	if err := b.forEachGroup(make([]wireDelta, 2), func([]wireDelta) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("for each group: got %v, want the error of fn", err)
	}
}

// TestBatchDetection checks which messages take the fast path for a single batch.
func TestBatchDetection(t *testing.T) {
	m := encoded(t, &mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Batch{Batch: richBatch()}})
	if data, ok := batchPayload(m); !ok || len(data) == 0 {
		t.Error("message with a batch: got not recognised, want recognised")
	}
	for name, data := range map[string][]byte{"nothing": nil, "more": append(slices.Clone(m), 0x7a, 0), "less": m[:len(m)-1], "another": {0x0a, 0}} {
		if _, ok := batchPayload(data); ok {
			t.Errorf("%s: got recognised as a batch, want not recognised", name)
		}
	}
	// A batch next to an unknown field is also a batch.
	x := newInboundFixture(t)
	b := mustMarshal(t, stockBatch(x.in.index, 0, 10, 1))
	if err := x.l.handle(append(b, 0xfa, 1, 0)); err != nil || live(x.tb)[1] != 1 {
		t.Errorf("batch with an unknown field: got error %v, value %d", err, live(x.tb)[1])
	}
	if err := x.l.handle([]byte{0xff}); !errors.Is(err, errMalformed) {
		t.Errorf("invalid message: got %v, want errMalformed", err)
	}
}

// TestBuffersAreReused checks that buffers of a tier are reused and that larger ones are not.
func TestBuffersAreReused(t *testing.T) {
	var p bufferPool
	for i, size := range bufferSizes {
		for _, length := range []int{size, size - 1, 1} {
			if i > 0 && length == 1 {
				continue
			}
			b := p.Get(length)
			if len(*b) != length || cap(*b) != size {
				t.Errorf("buffer of %d bytes: got length %d, capacity %d", length, len(*b), cap(*b))
			}
			p.Put(b)
		}
	}
	largest := bufferSizes[len(bufferSizes)-1]
	if b := p.Get(largest + 1); len(*b) != largest+1 {
		t.Errorf("buffer above all tiers: got %d bytes", len(*b))
	}
}
