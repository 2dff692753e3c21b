package replicate

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/schema"
	"mapsync/syncd/table"
)

// links is a set of interfaces, by index from 1.
type links struct {
	mu    sync.Mutex
	names []string
}

func (l *links) Name(index uint32) (string, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if index == 0 || int(index) > len(l.names) {
		return "", false
	}
	return l.names[index-1], true
}

func (l *links) Index(name string) (uint32, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.Index(l.names, name)
	return uint32(i + 1), i >= 0
}

func (l *links) add(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.names = append(l.names, name)
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
			t.Errorf("put: %s", o)
		}
	})
}

// ct is an entry as a program knows it.
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

// typedNode is a node with one typed map more.
func typedNode(t *testing.T, name string, s *schema.Schema, l schema.Links, opts ...nodeOption) *node {
	t.Helper()
	n := startNode(t, name, 1, nil, opts...)
	n.tb = newSizedTable(t, n.self, s.Key.Size, s.Value.Size, false)
	n.addTyped("typed", s, l, n.tb)
	return n
}

func holds(n *node, key, want []byte) func() bool {
	return func() bool {
		got := valueOf(n.tb, key)
		if len(got) == len(want) {
			at := map[int]int{40: 0, 48: 16}[len(got)] // the time stamp, for which clocks are compared
			ns := binary.LittleEndian.Uint64(got[at:])
			binary.LittleEndian.PutUint64(got[at:], (ns+5e8)/1e9*1e9)
		}
		return cmp.Equal(got, want)
	}
}

// flow is a key; its last two bytes are padding.
func flow(i byte) []byte { return []byte{10, 0, 0, i, 0x1f, 0x90, 0, 0} }

func TestLayoutsOfTwoVersions(t *testing.T) {
	a := typedNode(t, "a", oldSchema(), &links{names: []string{"lo", "eth0"}})
	b := typedNode(t, "b", newSchema(), &links{names: []string{"eth0", "lo"}})
	meet(a, b)
	c := ct{LastSeen: 1e12, Packets: 77, Ifindex: 2, Backend: "\x0a\x01\x02\x03\x00\x50", CPU: 3, Gone: 9, Flags: 0o52}
	putValue(t, a, flow(1), c.old())
	there := c
	there.Ifindex, there.CPU, there.Gone = 1, 0, 0
	eventually(t, "the new version has it", holds(b, flow(1), there.new()))

	// What the new version alone knows is kept there while the old one owns the key,
	// and each side's own values are.
	there.CPU, there.Mark, there.Packets = 7, 1234, 1e10
	putValue(t, b, flow(2), there.new())
	there.Packets = 78
	putValue(t, b, flow(1), there.new())
	c.Packets = 78
	c.Gone = 9 // not told
	eventually(t, "the old version has it", holds(a, flow(1), c.old()))
	c.Packets, c.LastSeen = 79, 2e12
	putValue(t, a, flow(1), c.old())
	there.Packets, there.LastSeen = 79, 2e12
	eventually(t, "the new version keeps its own fields", holds(b, flow(1), there.new()))

	// A number that the old version cannot hold is set aside, alone.
	eventually(t, "counted", func() bool { return a.r.Stats().DeltasOutOfRange == 1 })
	if v := valueOf(a.tb, flow(2)); v != nil {
		t.Errorf("a number that does not fit became %x", v)
	}
	m, _ := a.status("b", "typed")
	if m.DeltasRefused != 1 || m.ExceptionCount != 1 || m.Exceptions[0].Key != "{addr=10.0.0.2 port=8080}" || !strings.Contains(m.Exceptions[0].Reason, "packets") {
		t.Errorf("not shown: %+v", m)
	}
	for _, n := range []*node{a, b} {
		if s := n.r.Stats(); s.BadMessages+s.Gaps+s.BadRequests+s.MapsRefused+s.MapsUnfit != 0 {
			t.Errorf("errors on the way: %+v", s)
		}
	}
}

// TestUnknownLink has an interface that comes later.
func TestUnknownLink(t *testing.T) {
	here := &links{names: []string{"eth0"}}
	a := typedNode(t, "a", linkSchema(), &links{names: []string{"eth0", "eth1"}})
	b := typedNode(t, "b", linkSchema(), here, func(o *Options) { o.RewalkDelay = 50 * time.Millisecond })
	meet(a, b)
	eth := func(i byte) []byte { return []byte{i, 0, 0, 0} }
	putValue(t, a, eth(2), []byte{1})
	putValue(t, a, eth(1), []byte{2})
	eventually(t, "the other one is there", func() bool { return valueOf(b.tb, eth(1)) != nil })
	eventually(t, "counted", func() bool { return b.r.Stats().DeltasWithoutLink > 0 })
	if m, _ := b.status("a", "typed"); m.ExceptionCount != 1 || m.Exceptions[0].Key != "{ifindex=eth1}" || !strings.Contains(m.Exceptions[0].Reason, `unknown interface "eth1"`) {
		t.Errorf("shown as %+v", m.Exceptions)
	}
	here.add("eth1")
	eventually(t, "fetched once there is such an interface", func() bool { return valueOf(b.tb, eth(2)) != nil })
}

// linkSchema has an interface for a key.
func linkSchema() *schema.Schema {
	return &schema.Schema{
		Map: "typed",
		Key: &schema.Message{Name: "port", Size: 4, Fields: []schema.Field{
			{Name: "ifindex", Number: 1, Size: 4, Kind: schema.KindIfname, Roles: schema.RoleIfindex, Type: "__u32"},
		}},
		Value: &schema.Message{Name: "up", Size: 1, Fields: []schema.Field{
			{Name: "up", Number: 1, Size: 1, Kind: schema.KindUint, Type: "__u8"},
		}},
	}
}

func TestPaddingOfKeys(t *testing.T) {
	var log syncedLog
	a := typedNode(t, "a", oldSchema(), nil, log.options)
	b := typedNode(t, "b", oldSchema(), nil)
	dirty := flow(1)
	dirty[7] = 1
	for i := range 3 {
		putValue(t, a, dirty, ct{Packets: uint64(i + 1), Flags: 1}.old())
	}
	putValue(t, a, flow(2), ct{Flags: 2}.old())
	meet(a, b)
	eventually(t, "the other one is there", holds(b, flow(2), ct{Flags: 2}.old()))
	dirty[6] = 1
	putValue(t, a, dirty, ct{Flags: 3}.old())
	putValue(t, a, flow(3), ct{Flags: 3}.old())
	eventually(t, "the next one is there", holds(b, flow(3), ct{Flags: 3}.old()))
	if n := b.tb.Stats().Live; n != 2 {
		t.Errorf("%d entries came", n)
	}
	if n := a.r.Stats().DeltasUnencodable; n != 2 {
		t.Errorf("%d entries counted", n)
	}
	if n := log.count("entries cannot be sent to peers"); n != 1 {
		t.Errorf("logged %d times", n)
	}
}

// syncedLog is a log to be looked at.
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

// wrongSchema is oldSchema with a field that has become something else.
func wrongSchema() *schema.Schema {
	s := oldSchema()
	f := &s.Value.Fields[5]
	f.Kind = schema.KindBytes
	return s
}

func TestIncompatibleMap(t *testing.T) {
	var logs [2]syncedLog
	a := typedNode(t, "a", oldSchema(), nil, logs[0].options)
	b := typedNode(t, "b", wrongSchema(), nil, logs[1].options)
	others := newTable(t, b.self, false)
	ours := newTable(t, a.self, false)
	putTable(t, ours, 0, 10, 1)
	a.addMap("other", ours)
	b.addMap("other", others)
	meet(a, b)
	putValue(t, a, flow(1), ct{Gone: 1}.old())
	putValue(t, b, flow(1), ct{Gone: 1}.old())
	for i, n := range []*node{a, b} {
		other := []*node{b, a}[i].self.Node
		eventually(t, "refused with the field's name", func() bool {
			m, _ := n.status(other, "typed")
			return m.State == StateRefused && strings.Contains(m.Error, "value field gone")
		})
		eventually(t, "in both logs", func() bool {
			return logs[i].count("map refused by peer") == 1 && logs[i].count("map refused to peer") == 1 &&
				logs[i].count("value field gone") == 2
		})
		if ok, waiting := n.r.SyncedAll(); !ok && slices.Contains(waiting, other+"/typed") {
			t.Errorf("waiting for %q", waiting)
		}
	}
	eventually(t, "the other map goes on", func() bool { return len(live(others)) == 10 })
	// It is replicated once the load balancer there is of the right version.
	b.r.RemoveMap("typed")
	b.tb = newSizedTable(t, b.self, 8, 40, false)
	b.addTyped("typed", oldSchema(), nil, b.tb)
	eventually(t, "replicated", holds(b, flow(1), ct{Gone: 1}.old()))
}

// TestPeerThatServesWhatDoesNotFit has a sender that does not compare schemas.
func TestPeerThatServesWhatDoesNotFit(t *testing.T) {
	ended := make(chan uint32, 10)
	schemas := []*mapsyncv1.Schema{
		nil, toProto(schema.FromSizes(testMap, testKeySize, testValueSize+1)), toProto(schema.FromSizes(testMap, testKeySize, testValueSize+1)),
		toProto(schema.FromSizes(testMap, testKeySize, testValueSize)),
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
	b := startNode(t, "b", 2, nil, log.options, func(o *Options) { o.unfit = 200 * time.Millisecond })
	b.r.SetPeers([]Peer{peer})
	for i, want := range []string{"read no schema", "value: 16 bytes here, 17 at the sender", "value: 16 bytes here, 17 at the sender"} {
		eventually(t, "refused", func() bool {
			m, _ := b.status("x", testMap)
			return m.State == StateRefused && strings.Contains(m.Error, want) && b.r.Stats().MapsUnfit == uint64(i+1)
		})
		if ok, waiting := b.r.SyncedAll(); !ok {
			t.Errorf("waiting for %q, which cannot come", waiting)
		}
		if n := <-ended; n != uint32(i+1) {
			t.Errorf("subscription %d ended, expected %d", n, i+1)
		}
	}
	eventually(t, "received once it fits", func() bool { return len(live(b.tb)) == 1 })
	if n := log.count("map of peer refused"); n != 2 {
		t.Errorf("logged %d times, expected once for each reason", n)
	}
	if s := b.r.Stats(); s.BadMessages != 0 || s.ConnectErrors != 0 {
		t.Errorf("the stream suffered: %+v", s)
	}
}

func TestSchemaOnTheWire(t *testing.T) {
	for _, s := range []*schema.Schema{oldSchema(), newSchema(), linkSchema(), timeSchema(), schema.FromSizes("x", 48, 176), perCPU(), richSchema()} {
		data := mustMarshal(t, toProto(s))
		var p mapsyncv1.Schema
		if err := proto.Unmarshal(data, &p); err != nil {
			t.Fatal(err)
		}
		got, err := fromProto(s.Map, &p)
		if err != nil {
			t.Fatal(err)
		}
		if !schema.Equal(s, got) {
			t.Errorf("%s is another one: %s", s.Map, cmp.Diff(fmt.Sprintf("%+v", s), fmt.Sprintf("%+v", got)))
		}
		if again := mustMarshal(t, toProto(got)); string(again) != string(data) {
			t.Errorf("%s is told differently the second time", s.Map)
		}
	}
	for name, spoil := range map[string]func(*mapsyncv1.Schema){
		"no key":       func(p *mapsyncv1.Schema) { p.Key = nil },
		"unknown kind": func(p *mapsyncv1.Schema) { p.Value.Fields[0].Kind = 11 },
		"no kind":      func(p *mapsyncv1.Schema) { p.Value.Fields[0].Kind = 0 },
		"wide kind":    func(p *mapsyncv1.Schema) { p.Value.Fields[0].Kind += 256 },
		"unknown role": func(p *mapsyncv1.Schema) { p.Value.Fields[0].Roles = []mapsyncv1.FieldRole{14} },
		"outside":      func(p *mapsyncv1.Schema) { p.Value.Fields[0].Offset = 1 << 31 },
		"too deep": func(p *mapsyncv1.Schema) {
			for range schema.MaxDepth + 2 {
				p.Value = &mapsyncv1.MessageType{Name: "x", Size: p.Value.Size, Fields: []*mapsyncv1.Field{
					{Name: "x", Number: 1, Size: p.Value.Size, Kind: mapsyncv1.FieldKind_FIELD_KIND_MESSAGE, Message: p.Value},
				}}
			}
		},
		"too large": func(p *mapsyncv1.Schema) { p.Key.Fields[0].Type = strings.Repeat("x", maxSchemaBytes) },
	} {
		p := toProto(oldSchema())
		spoil(p)
		if _, err := fromProto("typed", p); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func perCPU() *schema.Schema {
	s := oldSchema()
	s.Value.Fields = s.Value.Fields[5:6]
	return s.PerCPU(4)
}
