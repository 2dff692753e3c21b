package replicate

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/mem"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/schema"
	"mapsync/syncd/table"
)

// TestNumberOfExceptions: those above the limit of the table have room of their own.
func TestNumberOfExceptions(t *testing.T) {
	var e exceptions
	e.begin()
	for i := range 3 {
		e.addLimited(fmt.Appendf(nil, "limit %d", i), 1, target)
	}
	for i := range maxExceptions + 2 {
		e.add(fmt.Appendf(nil, "key %d", i), 1, target, errGap)
	}
	if len(e.byKey) != maxExceptions+3 || e.more != 2 || e.count() != maxExceptions+2+3 {
		t.Errorf("%d remembered, %d more, %d in all", len(e.byKey), e.more, e.count())
	}
	if e.setLimited(8); e.count() != maxExceptions+2+8 || e.limited() != 8 {
		t.Errorf("%d in all, %d above the limit", e.count(), e.limited())
	}
	if e.setLimited(0); e.count() != maxExceptions+2 || e.limits != 0 {
		t.Errorf("%d in all, %d above the limit", e.count(), e.limits)
	}
}

// TestKeysOfExceptions are remembered up to 1024 bytes.
func TestKeysOfExceptions(t *testing.T) {
	for _, n := range []int{maxExceptionKey, maxExceptionKey + 1} {
		var e exceptions
		e.addLimited(make([]byte, n), 1, target)
		if remembered := len(e.byKey) == 1; remembered != (n <= maxExceptionKey) || e.limited() != 1 || e.count() != 1 {
			t.Errorf("%d bytes: remembered %t, %d above the limit, %d in all", n, remembered, e.limited(), e.count())
		}
	}
}

// TestUnsentRecordsInDigests: each is taken out of the digest of its owner, orphaned ones of theirs.
func TestUnsentRecordsInDigests(t *testing.T) {
	o := padded(t, oldSchema(), 1, 1)
	z := table.Owner{Node: "z", Incarnation: 1}
	o.tb.Update(func(tx *table.Tx) {
		k := flow(9)
		k[7] = 1
		tx.Remote(&table.Delta{Key: k, Value: ct{Packets: 1}.old(), Version: 5, Owner: tx.Intern(z)}, 5, table.RemoteOptions{})
	})
	o.f.tellAll = true
	o.now = o.now.Add(time.Hour)
	var m *mapsyncv1.Digest
	for _, s := range o.run() {
		if s.GetDigest() != nil {
			m = s.GetDigest()
		}
	}
	if m.GetUnsent() != 2 || m.GetNodes()[0].GetLive() != 1 {
		t.Fatalf("%d unsent, digest of %d records", m.GetUnsent(), m.GetNodes()[0].GetLive())
	}
	if d := m.GetOrphaned(); d.GetLive() != 0 || d.GetSum() != 0 || d.GetLoose() != 0 {
		t.Errorf("digest of orphaned records: %d, sum %d", d.GetLive(), d.GetSum())
	}
	// What has gone, or can be sent now, is left in.
	o.f.m.unsent.byKey["gone"] = &exception{}
	good := string(flow(1))
	o.f.m.unsent.byKey[good] = &exception{}
	o.tb.View(func(tx *table.Tx) {
		out, n := o.f.m.leftOut(tx)
		var nodes []string
		for _, l := range out {
			nodes = append(nodes, l.node)
		}
		if slices.Sort(nodes); n != 2 || !slices.Equal(nodes, []string{"b", "z"}) || o.f.m.unsent.byKey["gone"] != nil || o.f.m.unsent.byKey[good] != nil {
			t.Errorf("left out: records of %q", nodes)
		}
	})
}

// TestNamesBeyondTheBound of interfaces have no number.
func TestNamesBeyondTheBound(t *testing.T) {
	l := nameLinks{names: make([]string, maxLinkNames)}
	if n, ok := l.Index("eth0"); n != 0 || ok || len(l.names) != maxLinkNames {
		t.Errorf("number %d, %t", n, ok)
	}
}

// TestMessagesAreSentOnce: their buffers are gone after that.
func TestMessagesAreSentOnce(t *testing.T) {
	out := &outbound{data: mem.BufferSlice{mem.SliceBuffer("x")}}
	if data, err := newCodec().Marshal(out); err != nil || data.Len() != 1 {
		t.Fatal(err)
	}
	if data, err := newCodec().Marshal(out); err == nil || data != nil {
		t.Error("a message is sent twice")
	}
}

// TestRecordsOutOfRangeAreRefusedOnce in the count of refused records.
func TestRecordsOutOfRangeAreRefusedOnce(t *testing.T) {
	r, err := New(Options{Self: table.Owner{Node: "b", Incarnation: 2}, Dial: noDial})
	if err != nil {
		t.Fatal(err)
	}
	old, newer := oldSchema(), newSchema()
	if err := r.AddMap(testMap, Layout{KeySize: old.Key.Size, ValueSize: old.Value.Size, Schema: old}, newSizedTable(t, r.opt.Self, old.Key.Size, old.Value.Size, false)); err != nil {
		t.Fatal(err)
	}
	l := newLink(r, Peer{Node: "x", Incarnation: 1})
	l.requests(nil, r.localMaps(), time.Now())
	in := l.intakes[testMap]
	if err := in.accept(&mapsyncv1.MapAccepted{Map: 1, Generation: 1, Reset_: true, Schema: toProto(newer)}); err != nil {
		t.Fatal(err)
	}
	enc, err := schema.NewEncoder(newer, nil)
	if err != nil {
		t.Fatal(err)
	}
	m := stockBatch(1, 0, 10)
	for i, packets := range []uint64{1, 1 << 40, 1 << 40} {
		wire, err := enc.AppendKey(nil, flow(byte(i+1)))
		if err != nil {
			t.Fatal(err)
		}
		m.GetBatch().Deltas = append(m.GetBatch().Deltas, &mapsyncv1.Delta{
			Key: wire, Version: 5, Operation: mapsyncv1.Operation_OPERATION_UPDATE, Value: enc.AppendValue(nil, ct{Packets: packets}.new(), &schema.Times{}),
		})
	}
	woken(l.wake)
	if err := l.take(mustMarshal(t, m)); err != nil || in.state == StateFailed || !woken(l.wake) {
		t.Fatal(err, in.err)
	}
	if s := r.Stats(); s.DeltasOutOfRange != 2 || s.DeltasRefused != 2 || s.DeltasAccepted != 1 || in.refused != 2 {
		t.Errorf("%d out of range, %d refused, %d accepted", s.DeltasOutOfRange, s.DeltasRefused, s.DeltasAccepted)
	}
}

// TestIdsOfOwnersThatAreReused: what was decided about the owner before does not hold for the next one.
func TestIdsOfOwnersThatAreReused(t *testing.T) {
	o := newOut(t)
	o.remote(table.Owner{Node: "c", Incarnation: 9}, 5, 1)
	o.run()
	putTable(t, o.tb, 1, 2, 2) // the record is this node's now
	o.run()
	o.tb.View((*table.Tx).ReclaimOwners)
	o.remote(table.Owner{Node: target.Node, Incarnation: 1}, 5, 7)
	if ordinary, _ := keysIn(o.run()); !slices.Equal(ordinary, []int{7}) {
		t.Errorf("sent %v, want 7", ordinary)
	}
}

// TestOptionsOfAMerge: a full sync that sweeps and a repair touch records, what was requested does not.
func TestOptionsOfAMerge(t *testing.T) {
	for name, c := range map[string]struct {
		sweep, retold, request bool
		touch, repair          bool
	}{
		"plain":                    {},
		"sweep":                    {sweep: true, touch: true},
		"repair":                   {retold: true, touch: true, repair: true},
		"requested":                {request: true},
		"requested amid the sweep": {sweep: true, request: true},
	} {
		x := newStreamless(t)
		x.in.sweep = c.sweep
		x.in.comparing.job = &job{in: new(table.BucketSet)}
		m := stockBatch(x.in.index, 0, 10, 1)
		b := m.GetBatch()
		b.Retold, b.Requested, b.CaughtUp = c.retold, c.request, false
		if x.take(m); x.in.opt.Touch != c.touch || x.in.opt.Repair != c.repair || x.in.opt.Sender != 0 {
			t.Errorf("%s: %+v", name, x.in.opt)
		}
	}
	x := newStreamless(t)
	m := stockBatch(x.in.index, 0, 10, 1)
	m.GetBatch().Owners = append(m.GetBatch().Owners, &mapsyncv1.Incarnation{Node: "z", Number: 1})
	x.take(m)
	x.tb.View(func(tx *table.Tx) {
		if got := tx.Owner(x.in.opt.Sender); got != x.l.peer {
			t.Errorf("the sender is %v", got)
		}
	})
}

// TestVerdictsAboutOwners: a start that the clock allows is accepted, and a repair only while one is under way.
func TestVerdictsAboutOwners(t *testing.T) {
	x := newStreamless(t)
	x.r.opt.Now = func() time.Time { return at1000 }
	x.r.SetPeers([]Peer{x.l.current(), {Node: "c", Incarnation: 9, Addr: proofAddr}})
	v := x.r.view.Load()
	for incarnation, want := range map[uint64]rejection{lastStart: accepted, lastStart + 1: rejectIncarnation} {
		if got := x.in.verdict(v, &wireOwner{[]byte("z"), incarnation}, true); got != want {
			t.Errorf("incarnation %d: %s", incarnation, rejectionNames[got])
		}
	}
	x.in.permit = x.in.requesting.permit
	for name, c := range map[string]struct {
		job    *job
		retold bool
		want   rejection
	}{"in turn": {nil, false, rejectUnrequested}, "in turn during a repair": {&job{}, false, rejectUnrequested}, "repair": {&job{}, true, accepted}, "no repair": {nil, true, rejectUnrequested}} {
		x.in.job, x.l.batch.retold = c.job, c.retold
		if x.in.authorise([]wireOwner{{[]byte("c"), 9}}); x.in.verdicts[0] != c.want {
			t.Errorf("%s: %q", name, rejectionNames[x.in.verdicts[0]])
		}
	}
}

// TestRoomInReports is that of the kernel map, 0 without one.
func TestRoomInReports(t *testing.T) {
	for room, want := range map[int]uint64{-1: 0, 0: 0, 7: 7} {
		x := newStreamless(t)
		x.in.m.layout.Room = func() int { return room }
		for i := range maxReported + 1 {
			x.in.excepted.add(fmt.Appendf(nil, "%02d", i), 1, target, errGap)
		}
		m := x.in.report(time.Now())
		if m.GetMaxEntries() != want || m.GetRefused() != maxReported+1 || len(m.GetExceptions()) != maxReported {
			t.Errorf("room %d: report %v", room, m)
		}
		if e := m.GetExceptions()[0]; string(e.GetKey()) != "00" || e.GetReason() != errGap.Error() {
			t.Errorf("exception %v", e)
		}
	}
}

// TestAnswersThatBreakTheProtocol end the stream.
func TestAnswersThatBreakTheProtocol(t *testing.T) {
	x := newStreamless(t)
	for name, m := range map[string]*mapsyncv1.SubscribeResponse{
		"refused while it is served": {Message: &mapsyncv1.SubscribeResponse_Refused{Refused: &mapsyncv1.MapRefused{Map: 1}}},
		"refused":                    {Message: &mapsyncv1.SubscribeResponse_Refused{Refused: &mapsyncv1.MapRefused{Map: 9}}},
		"ended":                      {Message: &mapsyncv1.SubscribeResponse_Ended{Ended: &mapsyncv1.MapEnded{Map: 9}}},
		"owners sent":                {Message: &mapsyncv1.SubscribeResponse_OwnersSent{OwnersSent: &mapsyncv1.OwnersSent{Map: 9}}},
		"sources":                    {Message: &mapsyncv1.SubscribeResponse_Sources{Sources: &mapsyncv1.Sources{Map: 9}}},
		"pending":                    {Message: &mapsyncv1.SubscribeResponse_Pending{Pending: &mapsyncv1.MapPending{Map: 9}}},
		"accepted":                   {Message: &mapsyncv1.SubscribeResponse_Accepted{Accepted: &mapsyncv1.MapAccepted{Map: 9}}},
	} {
		if err := x.l.take(mustMarshal(t, m)); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
