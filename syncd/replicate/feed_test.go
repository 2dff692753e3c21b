package replicate

import (
	"errors"
	"slices"
	"testing"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/table"
)

var other = table.Owner{Node: "c", Incarnation: 9}

// TestEndOfTheStream: the peer learns once that nothing is left. Positions that hold nothing for it
// follow after a pause.
func TestEndOfTheStream(t *testing.T) {
	o := newOut(t)
	o.want("an empty table", "from 0, [] end, owners sent 1")
	if !o.f.upToDate.Load() || o.f.behind() {
		t.Error("nothing is left to send, and the feed is behind")
	}
	o.want("nothing new", "")
	o.remote(other, 5, 1)
	o.want("a record that is another node's to send, too soon", "")
	if !o.f.behind() {
		t.Error("the feed is not behind")
	}
	o.now = o.now.Add(o.r.opt.advance)
	o.want("after the pause", "[] end")
	if o.f.behind() || o.f.sent.Load() != 1 {
		t.Errorf("behind at %d", o.f.sent.Load())
	}
	o.want("once", "")
	o.now = o.now.Add(time.Hour)
	o.want("once, however long it is", "")
	o.tb.Update(func(tx *table.Tx) { // of the receiver itself: the position moves
		tx.Remote(&table.Delta{Key: key(1), Value: value(2), Version: 9, Owner: tx.Intern(target)}, 9, table.RemoteOptions{})
	})
	o.want("long after the last batch", "[] end")
	o.remote(other, 5, 2)
	o.want("the pause is between two", "")
}

// TestBatchesOfTheStream has more records than one batch takes: the position moves with each, the
// last one alone is the end, and all are counted.
func TestBatchesOfTheStream(t *testing.T) {
	for n, batches := range map[int]int{maxBatchDeltas: 1, maxBatchDeltas + 1: 2, 3 * maxBatchDeltas: 3} {
		o := newOut(t)
		putTable(t, o.tb, 0, n, 1)
		o.s.lastSent = time.Time{}
		var position uint64
		count := 0
		for _, m := range o.run() {
			b := m.GetBatch()
			if b == nil {
				continue
			}
			count++
			if b.GetPreviousPosition() != position || b.GetPosition() != position+uint64(len(b.GetDeltas())) {
				t.Errorf("batch from %d to %d at %d", b.GetPreviousPosition(), b.GetPosition(), position)
			}
			if position = b.GetPosition(); b.GetCaughtUp() != (position == uint64(n)) {
				t.Errorf("the batch to %d of %d is the end: %t", position, n, b.GetCaughtUp())
			}
		}
		if count != batches {
			t.Errorf("%d records in %d batches, expected %d", n, count, batches)
		}
		mine, all := o.s.count.load(), o.r.Stats().Sent
		if mine != all || mine.Batches != uint64(batches) || mine.Deltas != uint64(n) || mine.Bytes < uint64(10*n) {
			t.Errorf("counted %+v of the stream, %+v in all", mine, all)
		}
		if o.s.lastSent.IsZero() {
			t.Error("the stream counts as silent")
		}
	}
}

// TestRecordsOfAllOwnersUntilTheEnd: a receiver with unadopted entries is sent the records of every
// owner, its own excepted, until it has the last one.
func TestRecordsOfAllOwnersUntilTheEnd(t *testing.T) {
	o := newOut(t, func(m *mapsyncv1.MapSubscription) { m.TellAll = true })
	fillAll(o)
	o.want("all", "from 0, [1 2 3 4 5] end, owners sent 1")
	o.remote(other, 7, 40)
	putTable(t, o.tb, 10, 11, 1)
	o.want("after the end", "[10] end")
}

// TestRecordsOfOthersAreNotSent: a long stream has this node's records only.
func TestRecordsOfOthersAreNotSent(t *testing.T) {
	o := newOut(t)
	putTable(t, o.tb, 0, maxBatchDeltas+10, 1)
	o.remote(other, 5, 4000)
	ordinary, requested := keysIn(o.run())
	if len(ordinary) != maxBatchDeltas+10 || len(requested) != 0 || slices.Contains(ordinary, 4000) {
		t.Errorf("%d records sent, %d requested", len(ordinary), len(requested))
	}
}

// TestExpiriesOnTheWire: a peer that understands expiries receives them, one that does not receives
// nothing, and an observer a delete.
func TestExpiriesOnTheWire(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*mapsyncv1.MapSubscription)
		want   mapsyncv1.Operation
	}{
		"understands":   {func(*mapsyncv1.MapSubscription) {}, mapsyncv1.Operation_OPERATION_EXPIRE},
		"older release": {func(m *mapsyncv1.MapSubscription) { m.Expiries = false }, 0},
		"observer":      {func(m *mapsyncv1.MapSubscription) { m.Observe, m.Expiries = true, false }, mapsyncv1.Operation_OPERATION_DELETE},
	} {
		o := newOut(t, func(m *mapsyncv1.MapSubscription) { m.Owners.Orphaned = true }, c.change)
		z := table.Owner{Node: "z", Incarnation: 1}
		o.remote(z, 5, 1)
		o.tb.Update(func(tx *table.Tx) {
			tx.Remote(&table.Delta{Key: key(1), Version: 5, Owner: tx.Intern(z), Delete: true, Expired: true}, 6, table.RemoteOptions{})
		})
		check := func(what string, sent []*mapsyncv1.SubscribeResponse) {
			t.Helper()
			var got mapsyncv1.Operation
			for _, m := range sent {
				for _, d := range m.GetBatch().GetDeltas() {
					got = d.GetOperation()
				}
			}
			if got != c.want {
				t.Errorf("%s: %s sends %v, expected %v", name, what, got, c.want)
			}
		}
		check("the stream", o.run())
		if o.f.observe {
			continue
		}
		set := new(table.BucketSet)
		o.tb.View(func(tx *table.Tx) { set.Add(tx.Bucket(key(1))) })
		if err := o.s.askedAgain(&mapsyncv1.RetellRequest{Map: 1, Buckets: setBytes(set)}); err != nil {
			t.Fatal(err)
		}
		check("a repair", o.run())
		o.request(&mapsyncv1.OwnerRequest{Serial: 2, Orphaned: true, Again: true})
		check("a batch out of turn", o.run())
	}
}

// TestClosedFeed: a feed that has ended wakes its session no longer, is not served, and gives up
// its walks.
func TestClosedFeed(t *testing.T) {
	o := newOut(t)
	o.remote(table.Owner{Node: "z", Incarnation: 1}, 5, 1, 2)
	o.run()
	o.request(&mapsyncv1.OwnerRequest{Serial: 2, Orphaned: true})
	if err := o.s.askedAgain(&mapsyncv1.RetellRequest{Map: 1, Buckets: setBytes(new(table.BucketSet))}); err != nil {
		t.Fatal(err)
	}
	for o.f.requested.walk == nil || o.f.telling.tale == nil {
		o.step()
	}
	woken(o.s.wake)
	o.s.closeFeeds()
	putTable(t, o.tb, 50, 51, 1)
	if woken(o.s.wake) {
		t.Error("the session is still woken")
	}
	if o.f.serving.Load() || o.f.cursor != nil || o.f.requested.walk != nil || o.f.telling.tale != nil || len(o.s.feeds) != 0 {
		t.Errorf("serving %t, cursor %v, walks %v, %v", o.f.serving.Load(), o.f.cursor, o.f.requested.walk, o.f.telling.tale)
	}
	o.f.close()
}

// TestStreamThatBreaks has the stream break at each kind of message: that ends the session.
func TestStreamThatBreaks(t *testing.T) {
	broken := errors.New("broken")
	z := table.Owner{Node: "z", Incarnation: 1}
	for name, until := range map[string]func(o *outStream){
		"accepted": func(*outStream) {},
		"batch":    func(o *outStream) { o.step() },
		"another batch": func(o *outStream) {
			o.run()
			putTable(t, o.tb, 5, 6, 1)
		},
		"answer to a request": func(o *outStream) { o.run(); o.request(&mapsyncv1.OwnerRequest{Serial: 2}) },
		"batch out of turn": func(o *outStream) {
			o.remote(z, 5, 1)
			o.run()
			o.request(&mapsyncv1.OwnerRequest{Serial: 2, Orphaned: true})
			o.step()
		},
		"sources":  func(o *outStream) { o.run(); o.r.localMaps()[testMap].sources.Store(&[]string{"c"}) },
		"digest":   func(o *outStream) { o.run(); o.now = o.now.Add(time.Hour) },
		"end":      func(o *outStream) { o.run(); o.r.RemoveMap(testMap) },
		"repair":   func(o *outStream) { repairAll(t, o); o.step() },
		"repaired": func(o *outStream) { repairNone(t, o); o.step() },
	} {
		o := newOut(t)
		until(o)
		o.err = broken
		if _, err := o.f.step(o.r.localMaps()[testMap], o.now); !errors.Is(err, broken) {
			t.Errorf("%s: %v", name, err)
		}
	}
	o := newOut(t, func(m *mapsyncv1.MapSubscription) { m.Schema = toProto(oldSchema()) })
	o.err = broken
	if _, err := o.f.step(o.r.localMaps()[testMap], o.now); !errors.Is(err, broken) {
		t.Errorf("refused: %v", err)
	}
}

// repairAll has the peer request a repair of all buckets, and repairNone one of none.
func repairAll(t *testing.T, o *outStream) {
	t.Helper()
	putTable(t, o.tb, 1, 2, 1)
	o.run()
	all := new(table.BucketSet)
	for b := range table.DigestBuckets {
		all.Add(b)
	}
	if err := o.s.askedAgain(&mapsyncv1.RetellRequest{Map: 1, Buckets: setBytes(all)}); err != nil {
		t.Fatal(err)
	}
}

func repairNone(t *testing.T, o *outStream) {
	t.Helper()
	o.run()
	if err := o.s.askedAgain(&mapsyncv1.RetellRequest{Map: 1, Buckets: setBytes(new(table.BucketSet))}); err != nil {
		t.Fatal(err)
	}
}

// TestMapThatMayNotBeRead: a node that read-from does not have is refused, once.
func TestMapThatMayNotBeRead(t *testing.T) {
	o := newOut(t)
	o.r.RemoveMap(testMap)
	o.r.opt.Access = func(string) Access { return Access{Read: only("y")} }
	layout := Layout{KeySize: testKeySize, ValueSize: testValueSize}
	if err := o.r.AddMap(testMap, layout, o.tb); err != nil {
		t.Fatal(err)
	}
	o.want("refused", "Refused")
	o.want("once", "")
}
