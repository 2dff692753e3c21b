package replicate

import (
	"context"
	"encoding/binary"
	"math"
	"sync/atomic"
	"testing"
	"time"

	"mapsync/internal/poll"
	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/replicate/wire"
	"mapsync/syncd/schema"
	"mapsync/syncd/schema/schematest"
	"mapsync/syncd/table"
)

// portSchema has an interface in the key, beside a number, and one in the value.
func portSchema() *schema.Schema {
	u32 := func(name string, number int) schema.Field {
		return schema.Field{Name: name, Number: number, Offset: 4 * (number - 1), Size: 4, Kind: schema.KindUint, Type: "__u32"}
	}
	link := func(name string, number int) schema.Field {
		f := u32(name, number)
		f.Kind, f.Roles = schema.KindIfname, schema.RoleIfindex
		return f
	}
	return &schema.Schema{
		Map:   "typed",
		Key:   &schema.Message{Name: "k", Size: 8, Fields: []schema.Field{u32("id", 1), link("ifindex", 2)}},
		Value: &schema.Message{Name: "v", Size: 8, Fields: []schema.Field{u32("n", 1), link("oif", 2)}},
	}
}

func pair32(a, b int) []byte {
	return binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, uint32(a)), uint32(b))
}

func (l *testInterfaces) set(names ...string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.names = names
}

// filtering is a pair of nodes a and b of which one stops to exchange the records of the keys 5 to 9, and a node
// c that receives all.
type filtering struct {
	a, b, c *node
	key     func(i int) []byte
	value   func(i, v int) []byte
	begin   func()
	end     func()
}

// held returns the number of the ten records that a node holds.
func (f *filtering) held(n *node) (count int) {
	for i := range 10 {
		if valueOf(n.tb, f.key(i)) != nil {
			count++
		}
	}
	return count
}

func portNodes(t *testing.T) (f filtering, a, b *testInterfaces) {
	names := []string{"lo", "eth0", "eth1"}
	a, b = &testInterfaces{names: names}, &testInterfaces{names: names}
	f.a = typedNode(t, "a", portSchema(), a, shortCompare)
	f.b = typedNode(t, "b", portSchema(), b, shortCompare, quickFullSyncs)
	f.c = typedNode(t, "c", portSchema(), &testInterfaces{names: names}, shortCompare)
	f.key = func(i int) []byte { return pair32(i, 2+i/5) }
	f.value = func(_, v int) []byte { return pair32(v, 2) }
	return f, a, b
}

func quickFullSyncs(o *Options) { o.RepeatFullSyncDelay = 50 * time.Millisecond }

// filterings has the reasons for which a record is filtered, at either end.
var filterings = map[string]func(t *testing.T) filtering{
	"clock of the receiver behind": func(t *testing.T) (f filtering) {
		var behind atomic.Int64
		f.a = typedNode(t, "a", portSchema(), &testInterfaces{names: []string{"lo"}}, shortCompare)
		f.b = typedNode(t, "b", portSchema(), &testInterfaces{names: []string{"lo"}}, shortCompare, quickFullSyncs, func(o *Options) {
			o.Now = func() time.Time { return time.Now().Add(-time.Duration(behind.Load())) }
		})
		f.c = typedNode(t, "c", portSchema(), &testInterfaces{names: []string{"lo"}}, shortCompare)
		f.key, f.value = func(i int) []byte { return pair32(i, 1) }, func(_, v int) []byte { return pair32(v, 1) }
		f.begin, f.end = func() { behind.Store(int64(20 * time.Minute)) }, func() { behind.Store(0) }
		return f
	},
	"interface of a key missing at the receiver": func(t *testing.T) filtering {
		f, _, b := portNodes(t)
		f.begin, f.end = func() { b.set("lo", "eth0") }, func() { b.set("lo", "eth0", "eth1") }
		return f
	},
	"interface of a key missing at the sender": func(t *testing.T) filtering {
		f, a, _ := portNodes(t)
		f.begin, f.end = func() { a.set("lo", "eth0") }, func() { a.set("lo", "eth0", "eth1") }
		return f
	},
	"interface of a value missing at the receiver": func(t *testing.T) filtering {
		f, _, b := portNodes(t)
		f.key, f.value = func(i int) []byte { return pair32(i, 1) }, func(i, v int) []byte { return pair32(v, 2+i/5) }
		f.begin, f.end = func() { b.set("lo", "eth0") }, func() { b.set("lo", "eth0", "eth1") }
		return f
	},
	"interface of a value missing at the sender": func(t *testing.T) filtering {
		f, a, _ := portNodes(t)
		f.key, f.value = func(i int) []byte { return pair32(i, 1) }, func(i, v int) []byte { return pair32(v, 2+i/5) }
		f.begin, f.end = func() { a.set("lo", "eth0") }, func() { a.set("lo", "eth0", "eth1") }
		return f
	},
	"number out of range": func(t *testing.T) filtering {
		large := new(atomic.Bool)
		return filtering{
			a:   typedNode(t, "a", schematest.NewVersion(), nil, shortCompare),
			b:   typedNode(t, "b", schematest.OldVersion(), nil, shortCompare, quickFullSyncs),
			c:   typedNode(t, "c", schematest.NewVersion(), nil, shortCompare),
			key: func(i int) []byte { return flow(byte(i)) },
			value: func(i, v int) []byte {
				if i >= 5 && large.Load() {
					return ct{Packets: 1<<40 + uint64(v)}.new()
				}
				return ct{Packets: uint64(v)}.new()
			},
			begin: func() { large.Store(true) },
			end:   func() { large.Store(false) },
		}
	},
}

// TestFilteredRecordsAreKept: records that a node filters are neither deleted there nor, after their owner has
// left, on other nodes. Full syncs and repairs sweep all other keys meanwhile. Once the cause has ended, all nodes
// hold all records.
func TestFilteredRecordsAreKept(t *testing.T) {
	for name, start := range filterings {
		t.Run(name, func(t *testing.T) {
			f := start(t)
			for i := range 10 {
				putValue(t, f.a, f.key(i), f.value(i, 1))
			}
			connectNodes(f.a, f.b, f.c)
			poll.Within(t, deadline, "all nodes hold the records", func() bool { return f.held(f.b) == 10 && f.held(f.c) == 10 })
			f.begin()
			for i := range 10 {
				putValue(t, f.a, f.key(i), f.value(i, 2))
			}
			// The owner deletes a record, and forgets the delete before b receives it. Only a sweep removes it.
			f.a.tb.Update(func(tx *table.Tx) {
				tx.Local(&table.Change{Key: f.key(0), Op: table.OpDelete, Time: time.Now().UnixNano()})
				for tx.ExpireUnwritten(time.Now().Add(48*time.Hour).UnixNano(), math.MaxInt) {
				}
			})
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			_ = f.b.r.Resync(ctx, "typed", nil) // its error: the records stay filtered
			cancel()
			poll.Within(t, deadline, "the other key is deleted", func() bool {
				return valueOf(f.b.tb, f.key(0)) == nil && valueOf(f.c.tb, f.key(0)) == nil
			})
			compared := f.b.r.Stats().Digests
			poll.Within(t, deadline, "digests are compared", func() bool { return f.b.r.Stats().Digests > compared+20 })
			if n, m := f.held(f.b), f.held(f.c); n != 9 || m != 9 {
				t.Fatalf("records: got %d on b, %d on c, want 9", n, m)
			}
			f.a.stop()
			connectNodes(f.b, f.c)
			poll.Within(t, deadline, "b and c compare", func() bool { return f.c.r.Stats().Digests > compared+40 })
			if n, m := f.held(f.b), f.held(f.c); n != 9 || m != 9 {
				t.Fatalf("records after the owner has left: got %d on b, %d on c, want 9", n, m)
			}
			f.end()
			poll.Within(t, deadline, "b has the last values", func() bool {
				for i := 1; i < 10; i++ {
					if name != "number out of range" && string(valueOf(f.b.tb, f.key(i))) != string(valueOf(f.c.tb, f.key(i))) {
						return false
					}
				}
				return f.held(f.b) == 9 && f.held(f.c) == 9
			})
		})
	}
}

// TestRebootWithFilteredRecords: a node starts with an empty map and filters its own records. Neither the other
// nodes nor, after the next start with the same map, the node itself takes their absence for deletes.
func TestRebootWithFilteredRecords(t *testing.T) {
	a := startNode(t, "a", 1, nil, shortCompare)
	b := startNode(t, "b", 2, nil, shortCompare)
	connectNodes(a, b)
	b.put(0, 10, 1)
	poll.Within(t, deadline, "a has the records", func() bool { return len(live(a.tb)) == 10 })
	b.stop()
	behind := startNode(t, "b", 3, nil, shortCompare, quickFullSyncs, func(o *Options) {
		o.Now = func() time.Time { return time.Now().Add(-20 * time.Minute) }
	})
	connectNodes(a, behind)
	poll.Within(t, deadline, "all records were received", func() bool {
		all, _ := behind.r.AllReceived()
		return all && behind.r.Stats().DeltasAhead >= 10 && a.r.Stats().Digests > 40
	})
	if n := len(live(a.tb)); n != 10 {
		t.Fatalf("records of the rebooted node: got %d, want 10", n)
	}
	o := table.Options{
		Self: table.Owner{Node: "b", Incarnation: 4}, KeySize: testKeySize, ValueSize: testValueSize, SameMap: true, TombstoneTTL: time.Hour,
	}
	behind.tb.View(func(tx *table.Tx) { o.Unheld = tx.Unheld() })
	if n := len(o.Unheld.Hashes); n != 80 || o.Unheld.Overflow {
		t.Fatalf("unheld keys: got %d bytes, overflow %t, want 80 bytes", n, o.Unheld.Overflow)
	}
	// The load balancer adds an entry, and ends it while syncd is stopped: that absence is a delete.
	putTable(t, behind.tb, 20, 21, 1)
	poll.Within(t, deadline, "a has the new record", func() bool { return len(live(a.tb)) == 11 })
	behind.stop()
	tb, err := table.New(o)
	if err != nil {
		t.Fatal(err)
	}
	again := startNode(t, "b", 4, tb, shortCompare)
	connectNodes(a, again)
	poll.Within(t, deadline, "both hold the records that the map has never held", func() bool {
		return len(live(again.tb)) == 10 && len(live(a.tb)) == 10 && live(a.tb)[20] == 0
	})
	again.tb.View(func(tx *table.Tx) {
		if _, some := tx.UnheldSerial(); some {
			t.Error("unheld keys after the merge: got some, want none")
		}
	})
}

// TestTakeoverCoversRecord checks which records of another live node, in an answer, keep the peer's record of the key: those
// that replaced a record that the peer had, until the other node sends its own. A delete and an expiry show that it ended.
func TestTakeoverCoversRecord(t *testing.T) {
	for op, covered := range map[mapsyncv1.Operation]bool{
		mapsyncv1.Operation_OPERATION_UPDATE: true,
		mapsyncv1.Operation_OPERATION_UNSENT: true,
		mapsyncv1.Operation_OPERATION_DELETE: false,
		mapsyncv1.Operation_OPERATION_EXPIRE: false,
	} {
		x := newInboundFixture(t)
		x.handle(stockBatch(x.in.index, 0, 10, 1)) // version 5
		position := func() (p uint64) {
			x.tb.View(func(tx *table.Tx) {
				var rec table.Record
				tx.Get(key(1), &rec)
				p = rec.Position
			})
			return p
		}
		before := position()
		x.handle(stockBatch(x.in.index, 10, 20, 2))
		x.in.remoteOptions.Touch = true
		x.stream.batch.Owners = []wire.Owner{{Node: []byte("c"), Number: 9}}
		x.in.ownerIDs = []table.OwnerID{table.NoOwner}
		x.tb.Update(func(tx *table.Tx) {
			x.in.tx = tx
			x.in.coverTakeover(&wire.Delta{Operation: op, Version: 6}, key(1))
			x.in.tx = nil
		})
		if got := position() != before; got != covered {
			t.Errorf("%v: the peer's record is covered: got %t, want %t", op, got, covered)
		}
	}
}

// TestNamedOwnersUseOneID: a peer names many incarnations of another live node as owners of unadopted entries. The entries belong to
// the present incarnation, so that the peer does not use up the ids of that node.
func TestNamedOwnersUseOneID(t *testing.T) {
	const entries = 100
	r, tb := newTestReplicator(t)
	a := Peer{Node: "a", Incarnation: 1000, Addr: "127.0.0.1:2"}
	tb.Update(func(tx *table.Tx) {
		for i := range entries {
			tx.Load(key(i), value(1))
		}
	})
	x := Peer{Node: "x", Incarnation: 1, Addr: "127.0.0.1:1"}
	r.SetPeers([]Peer{x, a})
	s, in := newAcceptedStream(r, x)
	m := stockBatch(in.index, 0, 10)
	b := m.GetBatch()
	b.CaughtUp, b.Owners = false, nil
	for i := range entries {
		b.Owners = append(b.Owners, &mapsyncv1.Incarnation{Node: "a", Number: uint64(1 + i)})
		b.Deltas = append(b.Deltas, wireRecord(i, nil, 5, uint32(i)))
		b.Deltas[i].Operation = mapsyncv1.Operation_OPERATION_UNSENT
	}
	if err := s.handle(mustMarshal(t, m)); err != nil || in.err != nil {
		t.Fatalf("handle a message: got error %v, error of the map %v, want none", err, in.err)
	}
	ids := make(map[table.Owner]bool)
	tb.View(func(tx *table.Tx) { tx.Owners(func(o table.Owner) { ids[o] = o.Node == "a" }) })
	delete(ids, r.opt.Self)
	delete(ids, x.owner())
	if len(ids) != 1 || !ids[a.owner()] || tb.Stats().Unversioned != 0 {
		t.Errorf("owners of named entries: got %v, %d entries unversioned, want one of incarnation 1000, and 0", ids, tb.Stats().Unversioned)
	}
}
