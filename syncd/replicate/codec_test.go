package replicate

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/table"
)

// TestEncodedBatchMatchesStockDecoder decodes the batches of the encoder with the stock decoder. It
// compares every field, and the size with that of the stock encoder.
func TestEncodedBatchMatchesStockDecoder(t *testing.T) {
	self := table.Owner{Node: "a", Incarnation: 77}
	tb := newTable(t, self, false)
	putTable(t, tb, 0, 1500, 1)
	tb.Update(func(tx *table.Tx) {
		for i := range 200 {
			id := tx.Intern(table.Owner{Node: "x", Incarnation: uint64(i)})
			d := table.Delta{Key: key(i), Version: 1 << 61, Owner: id, Delete: i%3 == 0, Value: value(i)}
			if o := tx.Remote(&d, 0, table.RemoteOptions{}); o != table.Accepted {
				t.Fatal(o)
			}
		}
	})
	want := make(map[string]*mapsyncv1.Delta)
	c := tb.NewCursor(0)
	defer c.Close()
	tb.View(func(tx *table.Tx) {
		var rec table.Record
		e := newEncoder(300, self, &localMap{schemaEncoder: codecOf(t, tb)})
		for done := false; !done; {
			from := c.Position()
			e.begin(tx.Head())
			for e.fits() {
				if done = !tx.Next(c, &rec); done {
					break
				}
				e.add(tx, e.slot(rec.Owner), &rec)
				d := wantDelta(&rec)
				want[string(d.Key)] = d
			}
			checkBatch(t, tx, frameBytes(e.finish(from, c.Position(), done)), self, from, c.Position(), done, want)
		}
	})
	if len(want) > 0 {
		t.Errorf("records that were not sent: got %d, want 0", len(want))
	}
}

func wantDelta(rec *table.Record) *mapsyncv1.Delta {
	d := &mapsyncv1.Delta{
		Key: wireBytes(rec.Key), Value: wireBytes(rec.Value), Version: uint64(rec.Version),
		Owner: uint32(rec.Owner), Operation: mapsyncv1.Operation_OPERATION_UPDATE,
	}
	if rec.Delete {
		d.Operation = mapsyncv1.Operation_OPERATION_DELETE
	}
	return d
}

func checkBatch(t *testing.T, tx *table.Tx, data []byte, self table.Owner, from, to uint64, last bool, want map[string]*mapsyncv1.Delta) {
	t.Helper()
	var m mapsyncv1.SubscribeResponse
	if err := proto.Unmarshal(data, &m); err != nil {
		t.Fatal(err)
	}
	if n := proto.Size(&m); n != len(data) {
		t.Errorf("size of the batch: got %d bytes, want %d", len(data), n)
	}
	if len(data) > maxResponseBytes {
		t.Errorf("size of the batch: got %d bytes, want at most maxResponseBytes", len(data))
	}
	b := m.GetBatch()
	for _, d := range b.GetDeltas() {
		o := b.GetOwners()[d.GetOwner()]
		d.Owner = uint32(tx.Intern(table.Owner{Node: o.GetNode(), Incarnation: o.GetNumber()}))
		if diff := cmp.Diff(want[string(d.GetKey())], d, protocmp.Transform()); diff != "" {
			t.Fatal(diff)
		}
		delete(want, string(d.GetKey()))
	}
	b.Deltas, b.Owners = nil, nil
	head := &mapsyncv1.Batch{Map: 300, Origin: incarnation(self), PreviousPosition: from, Position: to, CaughtUp: last}
	if diff := cmp.Diff(head, b, protocmp.Transform()); diff != "" {
		t.Error(diff)
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
			t.Fatal(err)
		}
		inner, ok := batchPayload(data)
		if !ok {
			t.Fatal("batchPayload: a batch was not recognised")
		}
		var b batch
		got, err := decoded(&b, inner)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(m, got, protocmp.Transform()); diff != "" {
			t.Fatal(diff)
		}
	})
}

func drawOwner(t *rapid.T) *mapsyncv1.Incarnation {
	return &mapsyncv1.Incarnation{
		Node:   rapid.StringN(1, 60, maxNodeName).Draw(t, "node"),
		Number: rapid.Uint64().Draw(t, "number"),
	}
}

// decoded returns a batch as this package's decoder reads it.
func decoded(b *batch, data []byte) (*mapsyncv1.Batch, error) {
	if err := b.parse(data); err != nil {
		return nil, err
	}
	m := &mapsyncv1.Batch{
		Map: b.index, PreviousPosition: b.previousPosition, Position: b.position, CaughtUp: b.caughtUp,
	}
	if b.origin != (table.Owner{}) {
		m.Origin = incarnation(b.origin)
	}
	for _, w := range b.owners {
		m.Owners = append(m.Owners, incarnation(w.owner()))
	}
	err := b.forEachGroup(make([]wireDelta, 3), func(wires []wireDelta) error {
		for _, d := range wires {
			m.Deltas = append(m.Deltas, &mapsyncv1.Delta{
				Key: slices.Clone(d.key), Value: slices.Clone(d.value),
				Version: d.version, Owner: d.owner, Operation: d.operation,
			})
		}
		return nil
	})
	return m, err
}

// TestBatchWithoutAllocationPerDelta checks that encoding and merging do not allocate per delta.
func TestBatchWithoutAllocationPerDelta(t *testing.T) {
	layout := Layout{KeySize: benchKeySize, ValueSize: benchValueSize}
	t.Run("bytes", func(t *testing.T) { costsNoAllocation(t, layout) })
	layout.Schema = benchSchema()
	t.Run("typed", func(t *testing.T) { costsNoAllocation(t, layout) })
}

func costsNoAllocation(t *testing.T, layout Layout) {
	self := table.Owner{Node: "a", Incarnation: 1}
	tb := newSizedTable(t, self, layout.KeySize, layout.ValueSize, false)
	fillTable(tb, maxBatchDeltas, 1)
	m, err := newLocalMap(testMap, layout, tb)
	if err != nil {
		t.Fatal(err)
	}
	e := newEncoder(1, self, m)
	c := tb.NewCursor(0)
	defer c.Close()
	var data []byte
	var rec table.Record
	encode := func() {
		tb.View(func(tx *table.Tx) {
			e.begin(maxBatchDeltas)
			for tx.Next(c, &rec) {
				e.add(tx, e.slot(rec.Owner), &rec)
			}
			out := e.finish(0, c.Position(), true)
			data = append(data[:0], out.data[0].ReadOnlyData()...)
			data = append(data, out.data[1].ReadOnlyData()...)
			out.data.Free()
		})
		c.Close()
		c = tb.NewCursor(0)
	}
	if n := testing.AllocsPerRun(20, encode); n > 20 {
		t.Errorf("allocations to encode a batch: got %v, want at most 20", n)
	}

	r, err := New(Options{Self: table.Owner{Node: "b", Incarnation: 1}, Dial: noDial})
	if err != nil {
		t.Fatal(err)
	}
	theirs := newSizedTable(t, r.opt.Self, layout.KeySize, layout.ValueSize, false)
	if err := r.AddMap(testMap, layout, theirs); err != nil {
		t.Fatal(err)
	}
	l, in := newAcceptedStream(r, Peer{Node: "a", Incarnation: 1})
	merge := func() {
		in.position = 0
		if err := l.handle(data); err != nil {
			t.Fatal(err)
		}
	}
	merge()
	if n := testing.AllocsPerRun(20, merge); n > 20 {
		t.Errorf("allocations to merge a batch: got %v, want at most 20", n)
	}
	if n := theirs.Stats().Live; n != maxBatchDeltas {
		t.Errorf("merged keys: got %d, want maxBatchDeltas", n)
	}
}

// TestBufferPoolSizes checks the lengths of buffers of all tiers and above.
func TestBufferPoolSizes(t *testing.T) {
	for range 1000 {
		n := rand.N(200 << 10)
		b := buffers.Get(n)
		if len(*b) != n {
			t.Fatalf("length of a buffer: got %d, want %d", len(*b), n)
		}
		buffers.Put(b)
	}
}

// TestAckQueue pushes more positions than the queue holds, and removes them in steps.
func TestAckQueue(t *testing.T) {
	var q ackQueue
	for i := uint64(1); i <= 100; i++ {
		q.push(i, 10*i)
	}
	for _, step := range []struct {
		applied, position uint64
		ok                bool
	}{{5, 0, false}, {10, 1, true}, {10, 0, false}, {319, 31, true}, {999, 0, false}, {1000, 100, true}} {
		position, ok := q.pop(step.applied)
		if position != step.position || ok != step.ok {
			t.Errorf("applied %d: got position %d, %v", step.applied, position, ok)
		}
	}
	if q.n != 0 {
		t.Errorf("points left in the queue: got %d, want 0", q.n)
	}
}

// TestCoverage checks which records a node sends to which peer.
func TestCoverage(t *testing.T) {
	peers := func(names string) (p []Peer) {
		for _, c := range names {
			p = append(p, Peer{Node: string(c), Incarnation: 2})
		}
		return p
	}
	owner := func(name string, inc uint64) table.Owner { return table.Owner{Node: name, Incarnation: inc} }
	a := newView(nil, owner("a", 2), peers("bc"))
	nothing, orphaned, ofC := &ownerRequest{}, &ownerRequest{orphaned: true}, &ownerRequest{nodes: []string{"c"}}
	for _, tc := range []struct {
		request       *ownerRequest
		owner, target table.Owner
		want          bool
	}{
		{nothing, owner("a", 2), owner("b", 2), true},  // own record
		{nothing, owner("a", 1), owner("b", 2), true},  // own record of an earlier incarnation
		{nothing, owner("b", 2), owner("b", 2), false}, // record of the receiver
		{nothing, owner("b", 1), owner("b", 2), true},  // record of an earlier incarnation of the receiver
		{nothing, owner("c", 2), owner("b", 2), false}, // c sends it
		{ofC, owner("c", 2), owner("b", 2), true},      // requested, because c does not reach the receiver
		{nothing, owner("d", 2), owner("b", 2), false},
		{orphaned, owner("d", 2), owner("b", 2), true},
		{orphaned, owner("c", 2), owner("b", 2), false},
		{ofC, owner("d", 2), owner("b", 2), false},
	} {
		if got := (coverage{a, tc.request}).sends(tc.owner, tc.target); got != tc.want {
			t.Errorf("sends %v to %v under %+v: got %v", tc.owner, tc.target, *tc.request, got)
		}
	}
	join, leave := newView(a, a.self, peers("bcd")), newView(a, a.self, peers("b"))
	for _, tc := range []struct {
		name     string
		now, was coverage
		want     bool
	}{
		{"no state and an empty request", coverage{a, nothing}, coverage{}, false},
		{"no state", coverage{a, orphaned}, coverage{}, true},
		{"a node joins", coverage{join, orphaned}, coverage{a, orphaned}, false},
		{"a node leaves", coverage{leave, orphaned}, coverage{a, orphaned}, true},
		{"a node leaves and the request is empty", coverage{leave, nothing}, coverage{a, nothing}, false},
		{"the request grows", coverage{a, orphaned}, coverage{a, nothing}, true},
		{"the request shrinks", coverage{a, nothing}, coverage{a, orphaned}, false},
		{"a live node is requested", coverage{a, ofC}, coverage{a, orphaned}, true},
		{"a live node is requested again", coverage{join, ofC}, coverage{a, ofC}, false},
	} {
		if got := tc.now.exceeds(tc.was); got != tc.want {
			t.Errorf("%s: coverage exceeds the earlier one: got %v", tc.name, got)
		}
	}
	if a.members != newView(nil, owner("c", 9), peers("ab")).members || a.members == join.members {
		t.Error("members: got different values for the same live nodes, or equal values for others")
	}
}

// TestDeliveryState checks which records a sender assumes to be delivered to a peer that resumes.
func TestDeliveryState(t *testing.T) {
	a := newView(nil, table.Owner{Node: "a", Incarnation: 2}, nil)
	orphaned, nothing := coverage{a, &ownerRequest{orphaned: true}}, coverage{a, &ownerRequest{}}
	peer := table.Owner{Node: "b", Incarnation: 2}
	var m deliveries
	has := func(token uint64) bool { d := m.load(peer, token); return d.hasRecordsOf("z") }
	if has(0) || has(7) {
		t.Error("load an unknown token: got delivered records, want none")
	}
	first, second := m.newToken(), m.newToken()
	states := []deliveryState{{token: first, history: []coverage{nothing, orphaned}}, {token: second, history: []coverage{orphaned}}}
	m.store(peer, states)
	if has(first) || !has(second) {
		t.Error("load: the delivered records do not match the token")
	}
	states[1].add(nothing)
	states[1].add(orphaned)
	if !has(second) {
		t.Error("stored states: got a change with the stream, want copies")
	}
	if m.store(peer, states); has(second) {
		t.Error("records passed while they were not requested: got delivered, want not delivered")
	}
	var long deliveryState
	for range 10 * maxCoverageHistory {
		long.add(orphaned)
	}
	if len(long.history) > maxCoverageHistory || long.hasRecordsOf("y") {
		t.Errorf("history of %d coverages: too long, or the dropped coverages count as delivered", len(long.history))
	}
	if m.load(table.Owner{Node: "b", Incarnation: 3}, second).history == nil {
		t.Error("load for another incarnation: got the state of this one")
	}
	for i := range 2 * maxRememberedPeers {
		m.store(table.Owner{Node: fmt.Sprint(i), Incarnation: 1}, states)
	}
	if len(m.peers) > maxRememberedPeers {
		t.Errorf("remembered peers: got %d, want at most maxRememberedPeers", len(m.peers))
	}
}

// TestOptions checks invalid options and defaults.
func TestOptions(t *testing.T) {
	for name, o := range map[string]Options{
		"no name":    {Dial: noDial},
		"no dialler": {Self: table.Owner{Node: "a"}},
	} {
		if _, err := New(o); err == nil {
			t.Errorf("%s: got no error, want ErrOptions", name)
		}
	}
	r, err := New(Options{Self: table.Owner{Node: "a"}, Dial: noDial})
	if err != nil {
		t.Fatal(err)
	}
	if ok, waiting := r.InitialSyncDone(); ok || len(waiting) != 1 {
		t.Errorf("initial sync without membership: got done, waiting %v", waiting)
	}
	if r.opt.MaxClockAhead != DefaultMaxClockAhead {
		t.Errorf("default of MaxClockAhead: got %s", r.opt.MaxClockAhead)
	}
}
