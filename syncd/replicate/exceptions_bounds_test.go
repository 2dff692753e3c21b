package replicate

import (
	"fmt"
	"slices"
	"testing"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/replicate/wire"
	"mapsync/syncd/schema"
	"mapsync/syncd/schema/schematest"
	"mapsync/syncd/table"
)

// TestExceptionBounds checks the bound of exceptions, and that of those above the limit of the table.
func TestExceptionBounds(t *testing.T) {
	var e exceptions
	e.beginSync()
	for i := range 3 {
		e.addAboveLimit(fmt.Appendf(nil, "limit %d", i), 1, target, false)
	}
	for i := range maxExceptions + 2 {
		e.add(fmt.Appendf(nil, "key %d", i), 1, target, errGap)
	}
	if len(e.byKey) != maxExceptions+3 || e.overflow != 2 || e.count() != maxExceptions+2+3 {
		t.Errorf("exceptions: got %d stored, %d overflow, %d in total, want %d, 2, %d", len(e.byKey), e.overflow, e.count(), maxExceptions+3, maxExceptions+2+3)
	}
	if e.setAboveLimit(8); e.count() != maxExceptions+2+8 || e.aboveLimitCount() != 8 {
		t.Errorf("exceptions: got %d in total, %d above the limit, want %d and 8", e.count(), e.aboveLimitCount(), maxExceptions+2+8)
	}
	if e.setAboveLimit(0); e.count() != maxExceptions+2 || e.aboveLimitKeys != 0 {
		t.Errorf("exceptions: got %d in total, %d above the limit, want %d and 0", e.count(), e.aboveLimitKeys, maxExceptions+2)
	}
}

// TestExceptionKeyLength checks that keys of up to 1024 bytes are stored.
func TestExceptionKeyLength(t *testing.T) {
	for _, n := range []int{maxExceptionKey, maxExceptionKey + 1} {
		var e exceptions
		e.addAboveLimit(make([]byte, n), 1, target, false)
		if remembered := len(e.byKey) == 1; remembered != (n <= maxExceptionKey) || e.aboveLimitCount() != 1 || e.count() != 1 {
			t.Errorf("key of %d bytes: got stored %t, %d above the limit, %d in total, want %t, 1, 1", n, remembered, e.aboveLimitCount(), e.count(), n <= maxExceptionKey)
		}
	}
}

// TestUnsentRecordsAreExcludedFromDigests checks that unsent records are excluded from the digest
// of their owner, or of orphaned records.
func TestUnsentRecordsAreExcludedFromDigests(t *testing.T) {
	o := newPaddedFixture(t, schematest.OldVersion(), 1, 1)
	z := table.Owner{Node: "z", Incarnation: 1}
	o.tb.Update(func(tx *table.Tx) {
		k := flow(9)
		k[7] = 1
		tx.Remote(&table.Delta{Key: k, Value: ct{Packets: 1}.old(), Version: 5, Owner: tx.Intern(z)}, 5, table.RemoteOptions{})
	})
	o.m.sendAll = true
	o.now = o.now.Add(time.Hour)
	var m *mapsyncv1.Digest
	for _, s := range o.sendPending() {
		if s.GetDigest() != nil {
			m = s.GetDigest()
		}
	}
	if m.GetUnsent() != 2 || m.GetNodes()[0].GetLive() != 1 {
		t.Fatalf("digest: got %d unsent, %d live, want 2 and 1", m.GetUnsent(), m.GetNodes()[0].GetLive())
	}
	if d := m.GetOrphaned(); d.GetLive() != 0 || d.GetSum() != 0 || d.GetVersionSum() != 0 {
		t.Errorf("digest of orphaned records: got %d live, sum %d, want none", d.GetLive(), d.GetSum())
	}
	// Records that no longer exist, or that can be sent by now, are not excluded.
	o.m.m.unsent.byKey["gone"] = &exception{}
	good := string(flow(1))
	o.m.m.unsent.byKey[good] = &exception{}
	o.tb.View(func(tx *table.Tx) {
		out, n := o.m.m.unsentDigests(tx)
		var nodes []string
		for _, l := range out {
			nodes = append(nodes, l.node)
		}
		if slices.Sort(nodes); n != 2 || !slices.Equal(nodes, []string{"b", "z"}) || o.m.m.unsent.byKey["gone"] != nil || o.m.m.unsent.byKey[good] != nil {
			t.Errorf("excluded records: got owners %q, want b and z", nodes)
		}
	})
}

// TestInterfaceNamesBeyondBound checks that names above the bound get no index.
func TestInterfaceNamesBeyondBound(t *testing.T) {
	l := interfaceNames{names: make([]string, maxInterfaceNames)}
	if n, ok := l.Index("eth0"); n != 0 || ok || len(l.names) != maxInterfaceNames {
		t.Errorf("index of a name above the bound: got %d, %t, want none", n, ok)
	}
}

// TestOutOfRangeRecordsAreCountedOnce checks that records out of range count once as refused.
func TestOutOfRangeRecordsAreCountedOnce(t *testing.T) {
	r, err := New(Options{Self: table.Owner{Node: "b", Incarnation: 2}, Dial: noDial})
	if err != nil {
		t.Fatalf("new replicator: got error %v, want nil", err)
	}
	old, newer := schematest.OldVersion(), schematest.NewVersion()
	if err := r.AddMap(testMap, Layout{KeySize: old.Key.Size, ValueSize: old.Value.Size, Schema: old}, newSizedTable(t, r.opt.Self, old.Key.Size, old.Value.Size, false)); err != nil {
		t.Fatalf("add map: got error %v, want nil", err)
	}
	inbound := newInboundStream(r, Peer{Node: "x", Incarnation: 1})
	inbound.appendSubscriptions(nil, r.localMaps(), time.Now())
	in := inbound.maps[testMap]
	if err := in.accept(&mapsyncv1.MapAccepted{Map: 1, Generation: 1, Reset_: true, Schema: wire.SchemaToProto(newer)}); err != nil {
		t.Fatalf("accept map: got error %v, want nil", err)
	}
	enc, err := schema.NewEncoder(newer, nil)
	if err != nil {
		t.Fatalf("new encoder: got error %v, want nil", err)
	}
	m := stockBatch(1, 0, 10)
	for i, packets := range []uint64{1, 1 << 40, 1 << 40} {
		encoded, err := enc.AppendKey(nil, flow(byte(i+1)))
		if err != nil {
			t.Fatalf("encode key: got error %v, want nil", err)
		}
		m.GetBatch().Deltas = append(m.GetBatch().Deltas, &mapsyncv1.Delta{
			Key: encoded, Version: 5, Operation: mapsyncv1.Operation_OPERATION_UPDATE, Value: enc.AppendValue(nil, nil, ct{Packets: packets}.new(), &schema.Times{}),
		})
	}
	wasWoken(inbound.wake)
	if err := inbound.handle(mustMarshal(t, m)); err != nil || in.state == StateFailed || !wasWoken(inbound.wake) {
		t.Fatalf("handle a batch: got error %v, error of the map %v, want none and a wake-up", err, in.err)
	}
	if s := r.Stats(); s.DeltasOutOfRange != 2 || s.DeltasRefused != 2 || s.DeltasAccepted != 1 || in.refused != 2 {
		t.Errorf("deltas: got %d out of range, %d refused, %d accepted, want 2, 2, 1", s.DeltasOutOfRange, s.DeltasRefused, s.DeltasAccepted)
	}
}

// TestReusedOwnerIDs checks that a decision about an owner does not apply to the next owner with
// the same id.
func TestReusedOwnerIDs(t *testing.T) {
	o := newOutboundFixture(t)
	o.addRemote(table.Owner{Node: "c", Incarnation: 9}, 5, 1)
	o.sendPending()
	putTable(t, o.tb, 1, 2, 2) // this node takes over the record
	o.sendPending()
	o.tb.View((*table.Tx).ReclaimOwners)
	o.addRemote(table.Owner{Node: target.Node, Incarnation: 1}, 5, 7)
	if ordinary, _ := keysIn(o.sendPending()); !slices.Equal(ordinary, []int{7}) {
		t.Errorf("keys sent: got %v, want 7", ordinary)
	}
}

// TestMergeOptions checks that full syncs with a sweep and repairs touch records, and that
// requested batches do not.
func TestMergeOptions(t *testing.T) {
	for name, c := range map[string]struct {
		sweep, resent, request bool
		touch, repair          bool
	}{
		"plain":                      {},
		"sweep":                      {sweep: true, touch: true},
		"repair":                     {resent: true, touch: true, repair: true},
		"requested":                  {request: true},
		"requested during the sweep": {sweep: true, request: true},
	} {
		x := newInboundFixture(t)
		x.in.sweep = c.sweep
		x.in.comparison.resend = &inboundResend{buckets: new(table.BucketSet)}
		m := stockBatch(x.in.index, 0, 10, 1)
		b := m.GetBatch()
		b.Resent, b.Requested, b.CaughtUp = c.resent, c.request, false
		if x.handle(m); x.in.remoteOptions.Touch != c.touch || x.in.remoteOptions.Repair != c.repair || x.in.remoteOptions.Sender != 0 {
			t.Errorf("%s: remote options: got %+v, want touch %t, repair %t and no sender",
				name, x.in.remoteOptions, c.touch, c.repair)
		}
	}
	peer := newInboundFixture(t).stream.peer
	for _, o := range []table.Owner{{Node: "z", Incarnation: 1}, {Node: peer.Node, Incarnation: peer.Incarnation + 1}} {
		x := newInboundFixture(t)
		m := stockBatch(x.in.index, 0, 10, 1)
		m.GetBatch().Owners = append(m.GetBatch().Owners, &mapsyncv1.Incarnation{Node: o.Node, Number: o.Incarnation})
		x.handle(m)
		x.tb.View(func(tx *table.Tx) {
			if got := tx.Owner(x.in.remoteOptions.Sender); got != x.stream.peer {
				t.Errorf("sender of a batch with a record of %v: got %v, want the peer", o, got)
			}
		})
	}
}

// TestDecideIncarnationAndRepair checks that an incarnation up to MaxClockAhead is accepted, and a
// repair only while one is in progress.
func TestDecideIncarnationAndRepair(t *testing.T) {
	x := newInboundFixture(t)
	x.r.opt.Now = func() time.Time { return at1000 }
	x.r.SetPeers([]Peer{x.stream.currentPeer(), {Node: "c", Incarnation: 9, Addr: verifyAddr}})
	v := x.r.view.Load()
	for incarnation, want := range map[uint64]rejection{lastStart: accepted, lastStart + 1: rejectIncarnation} {
		if got := x.in.decide(v, &wire.Owner{Node: []byte("z"), Number: incarnation}, true); got != want {
			t.Errorf("incarnation %d: decision: got %s, want %s", incarnation, rejectionNames[got], rejectionNames[want])
		}
	}
	x.in.permit = x.in.owners.permit
	for name, c := range map[string]struct {
		job    *inboundResend
		resent bool
		want   rejection
	}{"in turn": {nil, false, rejectUnrequested}, "in turn during a repair": {&inboundResend{}, false, rejectUnrequested}, "repair": {&inboundResend{}, true, passedOver}, "no repair": {nil, true, rejectUnrequested}} {
		x.in.resend, x.stream.batch.Resent = c.job, c.resent
		if x.in.authorise([]wire.Owner{{Node: []byte("c"), Number: 9}}); x.in.decisions[0] != c.want {
			t.Errorf("%s: decision: got %d, want %d", name, x.in.decisions[0], c.want)
		}
	}
}

// TestReportMaxEntries checks that MaxEntries is that of the kernel map, or 0 without one.
func TestReportMaxEntries(t *testing.T) {
	for room, want := range map[int]uint64{0: 0, 7: 7} {
		x := newInboundFixture(t)
		x.in.m.layout.Kernel = func() KernelMap { return KernelMap{MaxEntries: room} }
		for i := range maxReportedExceptions + 1 {
			x.in.exceptions.add(fmt.Appendf(nil, "%02d", i), 1, target, errGap)
		}
		m := x.in.report(time.Now())
		if m.GetMaxEntries() != want || m.GetRefused() != maxReportedExceptions+1 || len(m.GetExceptions()) != maxReportedExceptions {
			t.Errorf("room %d: got report %v, want max entries %d, %d refused, %d listed",
				room, m, want, maxReportedExceptions+1, maxReportedExceptions)
		}
		if e := m.GetExceptions()[0]; string(e.GetKey()) != "00" || e.GetReason() != errGap.Error() {
			t.Errorf("exception in the report: got %v, want key 00 and reason %q", e, errGap)
		}
	}
}

// TestInvalidResponsesEndStream sends responses that violate the protocol.
func TestInvalidResponsesEndStream(t *testing.T) {
	x := newInboundFixture(t)
	for name, m := range map[string]*mapsyncv1.SubscribeResponse{
		"refused while served": {Message: &mapsyncv1.SubscribeResponse_Refused{Refused: &mapsyncv1.MapRefused{Map: 1}}},
		"refused":              {Message: &mapsyncv1.SubscribeResponse_Refused{Refused: &mapsyncv1.MapRefused{Map: 9}}},
		"ended":                {Message: &mapsyncv1.SubscribeResponse_Ended{Ended: &mapsyncv1.MapEnded{Map: 9}}},
		"owners sent":          {Message: &mapsyncv1.SubscribeResponse_OwnersSent{OwnersSent: &mapsyncv1.OwnersSent{Map: 9}}},
		"sources":              {Message: &mapsyncv1.SubscribeResponse_Sources{Sources: &mapsyncv1.Sources{Map: 9}}},
		"pending":              {Message: &mapsyncv1.SubscribeResponse_Pending{Pending: &mapsyncv1.MapPending{Map: 9}}},
		"accepted":             {Message: &mapsyncv1.SubscribeResponse_Accepted{Accepted: &mapsyncv1.MapAccepted{Map: 9}}},
	} {
		if err := x.stream.handle(mustMarshal(t, m)); err == nil {
			t.Errorf("%s: handle: got no error, want one", name)
		}
	}
}

// TestUnsentRecordsBeyondBound checks that the number of unsent records includes those that are only counted.
func TestUnsentRecordsBeyondBound(t *testing.T) {
	o := newPaddedFixture(t, schematest.OldVersion(), 2, 0)
	o.sendPending()
	o.m.m.unsent.overflow = 3
	o.tb.View(func(tx *table.Tx) {
		if _, n := o.m.m.unsentDigests(tx); n != 5 {
			t.Errorf("unsent records: got %d, want 5", n)
		}
	})
}

// TestVersionSumOfExceptions checks that a key which cannot exist here adds its version only. The record
// of another key is not subtracted.
func TestVersionSumOfExceptions(t *testing.T) {
	x := newInboundFixture(t)
	x.handle(stockBatch(x.in.index, 0, 10, 0))
	x.in.exceptions.add([]byte{0xff}, 7, x.stream.peer, errGap) // not in the format of a key
	x.tb.View(func(tx *table.Tx) {
		want := tx.VersionSumOf(x.stream.peer, 7)
		if got := x.in.exceptionsVersionSum(tx, func(node string) bool { return node == "x" }); got != want {
			t.Errorf("version sum: got %d, want %d", got, want)
		}
	})
}

// TestExceptionOfUnknownOwner checks that a record is stored although the batch has no owner with its number.
func TestExceptionOfUnknownOwner(t *testing.T) {
	x := newInboundFixture(t)
	x.in.addException(&wire.Delta{Key: []byte("k"), Version: 5, Owner: uint32(len(x.in.ownerIDs))}, errGap)
	if e := x.in.exceptions.byKey["k"]; e == nil || e.owner != (table.Owner{}) || e.version != 5 {
		t.Errorf("exception: got %+v, want one with version 5 and no owner", e)
	}
}
