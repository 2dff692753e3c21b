package replicate

import (
	"encoding/binary"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"mapsync/internal/poll"
	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/replicate/wire"
	"mapsync/syncd/schema"
	"mapsync/syncd/schema/schematest"
	"mapsync/syncd/table"
)

// testInterfaces is a set of interfaces with indexes from 1.
type testInterfaces struct {
	mu    sync.Mutex
	names []string
}

func (l *testInterfaces) Name(index uint32) (string, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if index == 0 || int(index) > len(l.names) {
		return "", false
	}
	return l.names[index-1], true
}

func (l *testInterfaces) Index(name string) (uint32, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.Index(l.names, name)
	return uint32(i + 1), i >= 0
}

func valueOf(tb *table.Table, key []byte) (value []byte) {
	tb.View(func(tx *table.Tx) {
		var rec table.Record
		if tx.Get(key, &rec) && !rec.Delete {
			value = slices.Clone(rec.Value)
		}
	})
	return value
}

func putValue(t *testing.T, n *node, key, value []byte) {
	t.Helper()
	n.tb.Update(func(tx *table.Tx) {
		if o := tx.Local(&table.Change{Key: key, Value: value, Time: time.Now().UnixNano()}); o != table.Accepted {
			t.Errorf("put: got %s, want %s", o, table.Accepted)
		}
	})
}

// ct is an entry of a conntrack map.
type ct struct {
	LastSeen   uint64
	Packets    uint64
	Ifindex    uint32
	Backend    string
	CPU        uint32
	Gone, Mark uint32
	Flags      byte
}

func (c ct) old() []byte {
	b := make([]byte, 40)
	binary.LittleEndian.PutUint64(b, c.LastSeen)
	binary.LittleEndian.PutUint32(b[8:], uint32(c.Packets))
	binary.LittleEndian.PutUint32(b[12:], c.Ifindex)
	copy(b[16:22], c.Backend)
	binary.LittleEndian.PutUint32(b[24:], c.CPU)
	binary.LittleEndian.PutUint32(b[28:], c.Gone)
	b[32] = c.Flags
	return b
}

func (c ct) new() []byte {
	b := make([]byte, 48)
	copy(b[:6], c.Backend)
	binary.LittleEndian.PutUint64(b[8:], c.Packets)
	binary.LittleEndian.PutUint64(b[16:], c.LastSeen)
	binary.LittleEndian.PutUint32(b[24:], c.CPU)
	binary.LittleEndian.PutUint32(b[28:], c.Ifindex)
	b[32] = c.Flags
	binary.LittleEndian.PutUint32(b[40:], c.Mark)
	return b
}

// typedNode returns a node with an additional typed map.
func typedNode(t *testing.T, name string, s *schema.Schema, l schema.Links, opts ...nodeOption) *node {
	t.Helper()
	n := startNode(t, name, 1, nil, opts...)
	n.tb = newTypedTable(t, n.self, s)
	n.addTyped("typed", s, l, n.tb)
	return n
}

// newTypedTable returns a table of a schema whose values are significant in all bits.
func newTypedTable(t testing.TB, self table.Owner, s *schema.Schema) *table.Table {
	t.Helper()
	tb, err := table.New(table.Options{
		Self: self, KeySize: s.Key.Size, ValueSize: s.Value.Size, TombstoneTTL: time.Hour,
		ComparedKey: s.ComparedKey(),
	})
	if err != nil {
		t.Fatalf("new table: got error %v, want nil", err)
	}
	return tb
}

func hasEntry(n *node, key, want []byte) func() bool {
	return func() bool {
		got := valueOf(n.tb, key)
		if len(got) == len(want) {
			at := map[int]int{40: 0, 48: 16}[len(got)] // offset of the time stamp, which is compared by clock
			ns := binary.LittleEndian.Uint64(got[at:])
			binary.LittleEndian.PutUint64(got[at:], (ns+5e8)/1e9*1e9)
		}
		return cmp.Equal(got, want)
	}
}

// flow returns a key. Its last two bytes are padding.
func flow(i byte) []byte { return []byte{10, 0, 0, i, 0x1f, 0x90, 0, 0} }

// TestLayoutsOfTwoVersions replicates between nodes with two versions of a layout.
func TestLayoutsOfTwoVersions(t *testing.T) {
	a := typedNode(t, "a", schematest.OldVersion(), &testInterfaces{names: []string{"lo", "eth0"}})
	b := typedNode(t, "b", schematest.NewVersion(), &testInterfaces{names: []string{"eth0", "lo"}})
	connectNodes(a, b)
	c := ct{LastSeen: 1e12, Packets: 77, Ifindex: 2, Backend: "\x0a\x01\x02\x03\x00\x50", CPU: 3, Gone: 9, Flags: 0o52}
	putValue(t, a, flow(1), c.old())
	there := c
	there.Ifindex, there.CPU, there.Gone = 1, 0, 0
	poll.Within(t, deadline, "the new version holds the entry", hasEntry(b, flow(1), there.new()))

	// A field that only the new version has keeps its value there while the old version owns the
	// key. Each side keeps its own local fields.
	there.CPU, there.Mark, there.Packets = 7, 1234, 1e10
	putValue(t, b, flow(2), there.new())
	there.Packets = 78
	putValue(t, b, flow(1), there.new())
	c.Packets = 78
	c.Gone = 9 // not sent
	poll.Within(t, deadline, "the old version holds the entry", hasEntry(a, flow(1), c.old()))
	c.Packets, c.LastSeen = 79, 2e12
	putValue(t, a, flow(1), c.old())
	there.Packets, there.LastSeen = 79, 2e12
	poll.Within(t, deadline, "the new version keeps its own fields", hasEntry(b, flow(1), there.new()))

	// A number that the old version cannot hold sets aside that entry only.
	poll.Within(t, deadline, "the count is reached", func() bool { return a.r.Stats().DeltasOutOfRange == 1 })
	if v := valueOf(a.tb, flow(2)); v != nil {
		t.Errorf("entry with a number out of range: got %x, want none", v)
	}
	m, _ := a.status("b", "typed")
	if m.DeltasRefused != 1 || m.ExceptionCount != 1 || m.Exceptions[0].Key != "{addr=10.0.0.2 port=8080}" || !strings.Contains(m.Exceptions[0].Reason, "packets") {
		t.Errorf("status of the exception: got %+v, want 1 refused and one exception of {addr=10.0.0.2 port=8080} because of packets",
			m)
	}
	for _, n := range []*node{a, b} {
		if s := n.r.Stats(); s.BadMessages+s.Gaps+s.BadRequests+s.MapsRefused+s.MapsIncompatible != 0 {
			t.Errorf("errors during the test: got %+v, want none", s)
		}
	}
}

// TestUnknownInterface has an interface appear after the entry that names it.
func TestUnknownInterface(t *testing.T) {
	here := &testInterfaces{names: []string{"eth0"}}
	a := typedNode(t, "a", schematest.InterfaceKey(), &testInterfaces{names: []string{"eth0", "eth1"}})
	b := typedNode(t, "b", schematest.InterfaceKey(), here, func(o *Options) { o.RepeatFullSyncDelay = 50 * time.Millisecond })
	connectNodes(a, b)
	eth := func(i byte) []byte { return []byte{i, 0, 0, 0} }
	putValue(t, a, eth(2), []byte{1})
	putValue(t, a, eth(1), []byte{2})
	poll.Within(t, deadline, "the other entry was received", func() bool { return valueOf(b.tb, eth(1)) != nil })
	poll.Within(t, deadline, "the count is reached", func() bool { return b.r.Stats().DeltasWithoutInterface > 0 })
	if m, _ := b.status("a", "typed"); m.ExceptionCount != 1 || m.Exceptions[0].Key != "{ifindex=eth1}" || !strings.Contains(m.Exceptions[0].Reason, `unknown interface "eth1"`) {
		t.Errorf("exceptions: got %+v, want one of {ifindex=eth1} because of an unknown interface", m.Exceptions)
	}
	here.set("eth0", "eth1")
	poll.Within(t, deadline, "the entry is received once the interface exists", func() bool { return valueOf(b.tb, eth(2)) != nil })
}

// TestPaddingOfKeys checks that entries with padding in the key are not sent, and are counted and logged.
func TestPaddingOfKeys(t *testing.T) {
	var log syncedLog
	a := typedNode(t, "a", schematest.OldVersion(), nil, log.options)
	b := typedNode(t, "b", schematest.OldVersion(), nil)
	dirty := flow(1)
	dirty[7] = 1
	for i := range 3 {
		putValue(t, a, dirty, ct{Packets: uint64(i + 1), Flags: 1}.old())
	}
	putValue(t, a, flow(2), ct{Flags: 2}.old())
	connectNodes(a, b)
	poll.Within(t, deadline, "the other entry was received", hasEntry(b, flow(2), ct{Flags: 2}.old()))
	dirty[6] = 1
	putValue(t, a, dirty, ct{Flags: 3}.old())
	putValue(t, a, flow(3), ct{Flags: 3}.old())
	poll.Within(t, deadline, "the next entry was received", hasEntry(b, flow(3), ct{Flags: 3}.old()))
	if n := b.tb.Stats().Live; n != 2 {
		t.Errorf("received entries: got %d, want 2", n)
	}
	if n := a.r.Stats().DeltasUnencodable; n != 2 {
		t.Errorf("unencodable entries: got %d, want 2", n)
	}
	if n := log.count("cannot send entries to peers"); n != 1 {
		t.Errorf("log lines: got %d, want 1", n)
	}
}

// syncedLog is a log that is safe for concurrent use.
type syncedLog struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *syncedLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *syncedLog) options(o *Options) { o.Logger = slog.New(slog.NewTextHandler(l, nil)) }

func (l *syncedLog) count(what string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), what)
}

// wrongSchema returns schematest.OldVersion with another type of one field.
func wrongSchema() *schema.Schema {
	s := schematest.OldVersion()
	f := &s.Value.Fields[5]
	f.Kind = schema.KindBytes
	return s
}

// TestIncompatibleMap checks that an incompatible map is refused on both sides and replicated after
// an upgrade.
func TestIncompatibleMap(t *testing.T) {
	var logs [2]syncedLog
	a := typedNode(t, "a", schematest.OldVersion(), nil, logs[0].options)
	b := typedNode(t, "b", wrongSchema(), nil, logs[1].options)
	others := newTable(t, b.self, false)
	ours := newTable(t, a.self, false)
	putTable(t, ours, 0, 10, 1)
	a.addMap("other", ours)
	b.addMap("other", others)
	connectNodes(a, b)
	putValue(t, a, flow(1), ct{Gone: 1}.old())
	putValue(t, b, flow(1), ct{Gone: 1}.old())
	for i, n := range []*node{a, b} {
		other := []*node{b, a}[i].self.Node
		poll.Within(t, deadline, "the map is refused with the name of the field", func() bool {
			m, _ := n.status(other, "typed")
			return m.State == StateRefused && strings.Contains(m.Error, "value field gone")
		})
		poll.Within(t, deadline, "both logs have the refusal", func() bool {
			return logs[i].count("map refused by peer") == 1 && logs[i].count("map does not fit that of peer, not sending it") == 1 &&
				logs[i].count("value field gone") == 2
		})
		poll.Within(t, deadline, "the initial sync does not wait for the map", func() bool {
			_, waiting := n.r.InitialSyncDone()
			return !slices.Contains(waiting, other+"/typed")
		})
	}
	poll.Within(t, deadline, "the other map is replicated", func() bool { return len(live(others)) == 10 })
	// The map is replicated once the load balancer of the other node has the right version.
	b.r.RemoveMap("typed")
	b.tb = newSizedTable(t, b.self, 8, 40, false)
	b.addTyped("typed", schematest.OldVersion(), nil, b.tb)
	poll.Within(t, deadline, "the entry is replicated", hasEntry(b, flow(1), ct{Gone: 1}.old()))
}

// TestPeerServesIncompatibleSchema has a sender that does not compare schemas.
func TestPeerServesIncompatibleSchema(t *testing.T) {
	ended := make(chan uint32, 10)
	schemas := []*mapsyncv1.Schema{
		nil, wire.SchemaToProto(schema.FromSizes(testMap, testKeySize, testValueSize+1)), wire.SchemaToProto(schema.FromSizes(testMap, testKeySize, testValueSize+1)),
		wire.SchemaToProto(schema.FromSizes(testMap, testKeySize, testValueSize)),
	}
	peer := startStock(t, func(stream mapsyncv1.ReplicationService_SubscribeServer) error {
		if err := welcome(stream); err != nil {
			return err
		}
		for {
			m, err := stream.Recv()
			if err != nil {
				return err
			}
			if u := m.GetUnsubscribe(); u != nil {
				ended <- u.GetMap()
			}
			sub := m.GetSubscribe()
			if sub == nil {
				continue
			}
			err = stream.Send(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Accepted{
				Accepted: &mapsyncv1.MapAccepted{Map: sub.GetMap(), Generation: 9, Reset_: true, Schema: schemas[sub.GetMap()-1]},
			}})
			if err == nil {
				err = stream.Send(stockBatch(sub.GetMap(), 0, 10, 1))
			}
			if err != nil {
				return err
			}
		}
	})
	var log syncedLog
	b := startNode(t, "b", 2, nil, log.options, func(o *Options) { o.incompatibleRetry = 200 * time.Millisecond })
	b.r.SetPeers([]Peer{peer})
	for i, want := range []string{"read no schema", "value: 16 bytes here, 17 at the sender", "value: 16 bytes here, 17 at the sender"} {
		poll.Within(t, deadline, "the map is refused", func() bool {
			m, _ := b.status("x", testMap)
			return m.State == StateRefused && strings.Contains(m.Error, want) && b.r.Stats().MapsIncompatible == uint64(i+1)
		})
		poll.Within(t, deadline, "the initial sync does not wait for the map", func() bool {
			ok, _ := b.r.InitialSyncDone()
			return ok
		})
		if n := <-ended; n != uint32(i+1) {
			t.Errorf("ended subscription: got %d, want %d", n, i+1)
		}
	}
	poll.Within(t, deadline, "the map is received once it fits", func() bool { return len(live(b.tb)) == 1 })
	if n := log.count("map of peer does not fit, not receiving it"); n != 2 {
		t.Errorf("log lines: got %d, want one for each reason", n)
	}
	if s := b.r.Stats(); s.BadMessages != 0 || s.ConnectErrors != 0 {
		t.Errorf("stream errors: got %+v, want none", s)
	}
}
