package replicate

import (
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/replicate/wire"
	"mapsync/syncd/schema"
	"mapsync/syncd/schema/schematest"
	"mapsync/syncd/table"
)

// TestAcceptedOwners checks the decision for each kind of owner, on the stream of peer x to node b.
func TestAcceptedOwners(t *testing.T) {
	x := newInboundFixture(t)
	x.r.SetPeers([]Peer{x.stream.currentPeer(), {Node: "c", Incarnation: 9, Addr: "127.0.0.1:1"}})
	future := x.r.latestIncarnation() + uint64(time.Hour)
	plain := &permit{peer: "x"}
	for name, c := range map[string]struct {
		node        string
		incarnation uint64
		permit      *permit
		write       func(string) bool
		repair      bool
		want        rejection
	}{
		"the peer":                                     {"x", 1, plain, nil, false, accepted},
		"an earlier incarnation of the peer":           {"x", 0, plain, nil, false, accepted},
		"a later incarnation of the peer":              {"x", 2, plain, nil, false, rejectIncarnation},
		"a later incarnation of the peer, in a repair": {"x", 2, plain, nil, true, rejectIncarnation},
		"an earlier incarnation of this node":          {"b", 1, plain, nil, false, accepted},
		"this incarnation of this node":                {"b", 2, plain, nil, false, accepted},
		"a later incarnation of this node":             {"b", 3, plain, nil, false, rejectIncarnation},
		"a live node, not requested":                   {"c", 9, plain, nil, false, rejectUnrequested},
		"a live node, requested":                       {"c", 9, &permit{peer: "x", nodes: []string{"c"}}, nil, false, accepted},
		"a live node, in an answer":                    {"c", 9, plain, nil, true, rejectUnrequested},
		"a live node, requested, in an answer":         {"c", 9, &permit{peer: "x", nodes: []string{"c"}}, nil, true, accepted},
		"a live node, of the fallback sender":          {"c", 9, &permit{peer: "x", orphaned: true, fallback: true}, nil, true, rejectUnrequested},
		"orphaned, in an answer":                       {"z", 9, plain, nil, true, accepted},
		"a live node, without a permit":                {"c", 9, nil, nil, false, accepted},
		"orphaned, not requested":                      {"z", 9, plain, nil, false, rejectUnrequested},
		"orphaned, requested":                          {"z", 9, &permit{peer: "x", orphaned: true}, nil, false, accepted},
		"an incarnation in the future":                 {"z", future, &permit{peer: "x", orphaned: true}, nil, false, rejectIncarnation},
		"an owner that may not write":                  {"x", 1, plain, func(n string) bool { return n != "x" }, false, rejectOwner},
		"an owner that may not write, in a repair":     {"c", 9, plain, func(n string) bool { return n == "x" }, true, rejectOwner},
		"this node without write access":               {"b", 1, plain, func(string) bool { return false }, false, accepted},
	} {
		x.in.permit = c.permit
		x.in.m.access.Write = c.write
		w := &wire.Owner{Node: []byte(c.node), Number: c.incarnation}
		if got := x.in.decide(x.r.view.Load(), w, c.repair); got != c.want {
			t.Errorf("%s: decision: got %q, want %q", name, rejectionNames[got], rejectionNames[c.want])
		}
	}
	x.in.permit, x.in.m.access.Write = plain, nil
	owners := []wire.Owner{{Node: []byte("c"), Number: 9}, {Node: []byte("x"), Number: 1}}
	for range 2 {
		if x.in.authorise(owners); !slices.Equal(x.in.decisions, []rejection{rejectUnrequested, accepted}) {
			t.Errorf("decisions for a batch: got %v, want [unrequested accepted]", x.in.decisions)
		}
	}
	x.in.resend = &inboundResend{}
	if x.in.authorise(owners); x.in.decisions[0] == accepted {
		t.Error("batch in turn during a repair: got accepted, want rejected")
	}
	x.stream.batch.Resent = true
	if x.in.authorise(owners); !slices.Equal(x.in.decisions, []rejection{passedOver, accepted}) {
		t.Errorf("batch of a repair: got decisions %v, want passed over and accepted", x.in.decisions)
	}
	x.in.resend.list = &diffList{}
	if x.in.authorise(owners); !slices.Equal(x.in.decisions, []rejection{accepted, accepted}) {
		t.Errorf("batch of a list: got decisions %v, want accepted", x.in.decisions)
	}
}

// TestRejectedRecordsAreCountedAndLogged checks the counts and log lines by reason. The limit is
// logged once.
func TestRejectedRecordsAreCountedAndLogged(t *testing.T) {
	var out strings.Builder
	r, err := New(Options{Self: table.Owner{Node: "b", Incarnation: 2}, Dial: noDial, Logger: slog.New(slog.NewTextHandler(&out, nil))})
	if err != nil {
		t.Fatalf("new replicator: got error %v, want nil", err)
	}
	if err := r.AddMap(testMap, Layout{KeySize: testKeySize, ValueSize: testValueSize}, newTable(t, r.opt.Self, false)); err != nil {
		t.Fatalf("add map: got error %v, want nil", err)
	}
	_, in := newAcceptedStream(r, Peer{Node: "x", Incarnation: 1})
	lines := func() int { return strings.Count(out.String(), "records rejected") }
	in.noteRejected(&mergeResult{})
	if lines() != 0 || in.owners.rejectedUnrequested {
		t.Errorf("batch without rejections: got log %s, want none", out.String())
	}
	var res mergeResult
	res.rejected[rejectOwner], res.rejected[rejectIncarnation] = 2, 3
	in.noteRejected(&res)
	if lines() != 1 || in.owners.rejectedUnrequested || !strings.Contains(out.String(), `text="write_from 2, incarnation 3" problem=records-rejected`) {
		t.Errorf("rejectedUnrequested: got %t, log %s, want false and one line with write_from 2, incarnation 3 and the problem",
			in.owners.rejectedUnrequested, out.String())
	}
	res = mergeResult{}
	res.rejected[rejectUnrequested] = 1
	in.noteRejected(&res)
	if lines() != 2 || !in.owners.rejectedUnrequested {
		t.Errorf("rejectedUnrequested: got %t, log %s, want true and two lines", in.owners.rejectedUnrequested, out.String())
	}
	res = mergeResult{}
	res.rejected[rejectLimit] = 4
	in.noteRejected(&res)
	in.noteRejected(&res)
	if lines() != 3 || !strings.Contains(out.String(), "max-records-factor") {
		t.Errorf("batch above the limit: got log %s, want 3 lines about rejected records, and max-records-factor", out.String())
	}
	for reason, want := range map[string]uint64{"incarnation": 3, "limit": 8, "unrequested": 1, "write_from": 2} {
		if got := r.Rejected()[reason]; got != want || len(r.Rejected()) != int(rejections)-1 {
			t.Errorf("rejected as %s: got %d, want %d", reason, got, want)
		}
	}
}

// TestPermitSuccession checks that a permit keeps the orphaned records of the one before, and no live node.
func TestPermitSuccession(t *testing.T) {
	a, b := &permit{peer: "x", nodes: []string{"c", "e"}, fallback: true}, &permit{peer: "x", nodes: []string{"a", "c"}, all: true, orphaned: true}
	if p := a.succeededBy(b); !p.all || !p.orphaned || p.fallback || !slices.Equal(p.nodes, b.nodes) || p.peer != "x" {
		t.Errorf("successor with more: got %+v, want all and orphaned records, nodes a and c, peer x, no fallback", p)
	}
	if p := b.succeededBy(a); !p.all || !p.orphaned || !p.fallback || !slices.Equal(p.nodes, a.nodes) {
		t.Errorf("successor with less: got %+v, want all and orphaned records, nodes c and e, fallback", p)
	}
	if p := a.succeededBy(a); p.all || p.orphaned || !p.fallback || !slices.Equal(p.nodes, a.nodes) {
		t.Errorf("the same permit: got %+v, want it unchanged", p)
	}
}

// TestMergeBatchWithAllKindsOfRecords merges records of every kind in one batch.
func TestMergeBatchWithAllKindsOfRecords(t *testing.T) {
	x := newInboundFixture(t)
	z := table.Owner{Node: "z", Incarnation: 1}
	ahead := uint64(time.Now().Add(2 * x.r.opt.MaxClockAhead).UnixNano())
	m := stockBatch(x.in.index, 0, 10)
	b := m.GetBatch()
	b.Owners = append(b.Owners, &mapsyncv1.Incarnation{Node: "c", Number: 9}, &mapsyncv1.Incarnation{Node: "z", Number: 1})
	x.r.SetPeers([]Peer{x.stream.currentPeer(), {Node: "c", Incarnation: 9, Addr: "127.0.0.1:1"}})
	b.Deltas = []*mapsyncv1.Delta{wireRecord(1, value(1), 5, 0), wireRecord(2, value(2), ahead, 0), wireRecord(3, value(3), 5, 1), wireRecord(4, nil, 5, 0)}
	if err := x.stream.handle(mustMarshal(t, m)); err != nil || x.in.state == StateFailed {
		t.Fatalf("handle a message: got error %v, error of the map %v, want none", err, x.in.err)
	}
	s := x.r.Stats()
	if s.Received.Batches != 1 || s.Received.Deltas != 4 || s.Received.Bytes < 40 || s.DeltasAccepted != 2 || s.DeltasAhead != 1 || s.DeltasRefused != 0 || x.r.Rejected()["unrequested"] != 1 {
		t.Errorf("counters after the batch: got %+v, rejected %v, "+
			"want 1 batch, 4 deltas, at least 40 bytes, 2 accepted, 1 ahead, none refused, 1 unrequested", s, x.r.Rejected())
	}
	if len(live(x.tb)) != 1 || live(x.tb)[1] != 1 {
		t.Errorf("live records: got %v, want key 1 with value 1 only", live(x.tb))
	}
	if m, _ := (&node{r: x.r}).status("x", testMap); m.In.Deltas != 4 || m.DeltasAccepted != 2 || m.DeltasRefused != 1 {
		t.Errorf("status of the map: got %+v, want 4 deltas received, 2 accepted, 1 refused", m)
	}
	// An expiry does not change a newer record. A delete does.
	enterRemote(x.tb, z, 5, 70)
	m = stockBatch(x.in.index, 10, 20)
	m.GetBatch().Owners[0] = &mapsyncv1.Incarnation{Node: "z", Number: 1}
	d := wireRecord(70, nil, 5, 0)
	d.Operation = mapsyncv1.Operation_OPERATION_EXPIRE
	m.GetBatch().Deltas = []*mapsyncv1.Delta{d}
	x.in.err = nil
	x.handle(m)
	var rec table.Record
	x.tb.View(func(tx *table.Tx) { tx.Get(key(70), &rec) })
	if !rec.Expired {
		t.Errorf("merge an expiry: got %+v, want an expired record", rec)
	}
	// A malformed batch ends the subscription of the map.
	for want, change := range map[string]func(*mapsyncv1.Batch){
		"operation 0":            func(b *mapsyncv1.Batch) { b.Deltas[0].Operation = 0 },
		"operation 5":            func(b *mapsyncv1.Batch) { b.Deltas[0].Operation = 5 },
		"without a version":      func(b *mapsyncv1.Batch) { b.Deltas[0].Version = 0 },
		"owner 1 of 1":           func(b *mapsyncv1.Batch) { b.Deltas[0].Owner = 1 },
		"read key":               func(b *mapsyncv1.Batch) { b.Deltas[0].Key = []byte{0xff} },
		"read value":             func(b *mapsyncv1.Batch) { b.Deltas[0].Value = []byte{0xff} },
		"from 1 to 10 at 0":      func(b *mapsyncv1.Batch) { b.PreviousPosition = 1 },
		"from 18446744073709551": func(b *mapsyncv1.Batch) { b.PreviousPosition = 1<<64 - 1 },
	} {
		x := newInboundFixture(t)
		m := stockBatch(x.in.index, 0, 10, 1)
		change(m.GetBatch())
		if err := x.stream.handle(mustMarshal(t, m)); err != nil || x.in.state != StateFailed || !strings.Contains(errorText(x.in.err), want) {
			t.Errorf("handle a malformed batch: want error %q, got %v, %v", want, err, x.in.err)
		}
		if s := x.r.Stats(); s.BadMessages != 1 || (s.Gaps == 1) != errors.Is(x.in.err, errGap) || x.in.position != 0 {
			t.Errorf("%s: got %d bad messages, %d gaps, want 1, a gap only for errGap, and position 0", want, s.BadMessages, s.Gaps)
		}
		if x.stream.byIndex[1] != nil || x.in.retryAt.IsZero() {
			t.Errorf("%s: the subscription did not end, want it ended with a time of the retry", want)
		}
	}
	// A batch with decreasing positions is a gap.
	x = newInboundFixture(t)
	x.handle(stockBatch(1, 0, 10, 1))
	if err := x.stream.handle(mustMarshal(t, stockBatch(1, 10, 9, 1))); err != nil || !errors.Is(x.in.err, errGap) {
		t.Errorf("batch with decreasing positions: got %v, %v, want a gap", err, x.in.err)
	}
	// A batch before the acceptance, and a batch of another incarnation, end the stream.
	x = newInboundFixture(t)
	x.in.state = StateWaiting
	if err := x.stream.handle(mustMarshal(t, stockBatch(1, 0, 10, 1))); !errors.Is(err, errProtocol) {
		t.Errorf("batch before the acceptance: got %v, want a protocol error", err)
	}
	x.in.state = StateSyncing
	m = stockBatch(1, 0, 10, 1)
	m.GetBatch().Origin.Number = 2
	if err := x.stream.handle(mustMarshal(t, m)); !errors.Is(err, errProtocol) || len(live(x.tb)) != 0 {
		t.Errorf("batch of another incarnation: got %v, want a protocol error", err)
	}
}

// TestRepairCountsUnrepairedRecords checks that records set aside in a repair count as unrepaired,
// except for exceptions.
func TestRepairCountsUnrepairedRecords(t *testing.T) {
	x := newInboundFixture(t)
	j := &inboundResend{buckets: new(table.BucketSet), firstPosition: 1}
	x.in.comparison.resend = j
	m := x.resentBatch(1, 2, 3)
	ahead := uint64(time.Now().Add(2 * x.r.opt.MaxClockAhead).UnixNano())
	m.GetBatch().Deltas[0].Version = ahead
	x.r.SetPeers([]Peer{x.stream.currentPeer(), {Node: "c", Incarnation: 9, Addr: "127.0.0.1:1"}})
	m.GetBatch().Owners = append(m.GetBatch().Owners, &mapsyncv1.Incarnation{Node: "c", Number: 9})
	// The owner is another live node, whose own stream brings the record.
	m.GetBatch().Deltas[2].Owner = 1
	x.handle(m)
	if j.unrepaired != 1 || j.repaired != 1 || len(live(x.tb)) != 1 {
		t.Errorf("repair: got %d unrepaired, %d repaired, live records %v, want 1, 1 and one live record",
			j.unrepaired, j.repaired, live(x.tb))
	}
	x.handle(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Resent{Resent: &mapsyncv1.Resent{Map: 1, Unsent: 5}}})
	if x.in.comparison.divergent != 1+1+5 {
		t.Errorf("divergent entries: got %d, want 7", x.in.comparison.divergent)
	}
	x.in.comparison.resend, x.in.comparison.peerUnsent = &inboundResend{buckets: new(table.BucketSet)}, 4
	x.handle(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Resent{Resent: &mapsyncv1.Resent{Map: 1, Unsent: 5}}})
	if x.in.comparison.divergent != 1 {
		t.Errorf("divergent entries: got %d, want 1: the peer reports 4 as unsent", x.in.comparison.divergent)
	}
}

// TestReplaceRuleOfResentRecords checks that in a repair the peer is authoritative for its own
// records, and a fallback sender for orphaned records.
func TestReplaceRuleOfResentRecords(t *testing.T) {
	x := newInboundFixture(t)
	x.r.SetPeers([]Peer{x.stream.currentPeer(), {Node: "c", Incarnation: 9, Addr: "127.0.0.1:1"}, {Node: "d", Incarnation: 9, Addr: "127.0.0.1:1"}})
	var owners []wire.Owner
	for _, node := range []string{"x", "b", "c", "d", "z"} {
		owners = append(owners, wire.Owner{Node: []byte(node), Number: 1})
	}
	for _, fallback := range []bool{false, true, true} {
		x.in.permit = &permit{peer: "x", fallback: fallback, nodes: []string{"c"}}
		x.in.decideReplace(owners)
		same := table.ReplaceNothing
		if fallback {
			same = table.ReplaceSameVersion
		}
		if !slices.Equal(x.in.comparedOwners, []bool{true, false, true, false, true}) ||
			!slices.Equal(x.in.replaceRules, []table.Replace{table.ReplaceAnyVersion, table.ReplaceNothing, table.ReplaceNothing, table.ReplaceNothing, same}) {
			t.Errorf("fallback %t: got compared owners %v, replace rules %v, "+
				"want compared owners 0, 2 and 4; want the rules any version, nothing three times, %v",
				fallback, x.in.comparedOwners, x.in.replaceRules, same)
		}
	}
}

// TestEntryWithUnknownInterface checks that entries with an unknown interface are set aside and
// retried. A delete of such an entry is not an exception, and the peer keeps its tombstone until a full sync
// sends it again.
func TestEntryWithUnknownInterface(t *testing.T) {
	s := schematest.InterfaceKey()
	r, err := New(Options{Self: table.Owner{Node: "b", Incarnation: 2}, Dial: noDial})
	if err != nil {
		t.Fatalf("new replicator: got error %v, want nil", err)
	}
	tb := newSizedTable(t, r.opt.Self, s.Key.Size, s.Value.Size, false)
	if err := r.AddMap(testMap, Layout{KeySize: s.Key.Size, ValueSize: s.Value.Size, Schema: s, Links: &testInterfaces{names: []string{"eth0"}}}, tb); err != nil {
		t.Fatalf("add map: got error %v, want nil", err)
	}
	inbound, in := newAcceptedStream(r, Peer{Node: "x", Incarnation: 1})
	enc, err := schema.NewEncoder(s, &testInterfaces{names: []string{"eth0", "eth1", "eth2"}})
	if err != nil {
		t.Fatalf("new encoder: got error %v, want nil", err)
	}
	send := func(from, to uint64, op mapsyncv1.Operation, keys ...byte) {
		t.Helper()
		m := stockBatch(1, from, to)
		for _, k := range keys {
			encoded, err := enc.AppendKey(nil, []byte{k, 0, 0, 0})
			if err != nil {
				t.Fatalf("encode key: got error %v, want nil", err)
			}
			m.GetBatch().Deltas = append(m.GetBatch().Deltas, &mapsyncv1.Delta{Key: encoded, Version: 5, Operation: op})
		}
		if err := inbound.handle(mustMarshal(t, m)); err != nil || in.state == StateFailed {
			t.Fatalf("handle a message: got error %v, error of the map %v, want none", err, in.err)
		}
	}
	send(0, 10, mapsyncv1.Operation_OPERATION_UPDATE, 2, 1, 3)
	st := r.Stats()
	if tb.Stats().Live != 1 || st.DeltasWithoutInterface != 2 || st.DeltasRefused != 2 || in.exceptions.count() != 2 || in.repeatFullSyncAt.IsZero() {
		t.Errorf("entries with an unknown interface: got %d live, %d without an interface, %d refused, next full sync at %s, "+
			"want 1, 2, 2, a time, and 2 exceptions", tb.Stats().Live, st.DeltasWithoutInterface, st.DeltasRefused, in.repeatFullSyncAt)
	}
	in.repeatFullSyncAt = time.Time{}
	send(10, 20, mapsyncv1.Operation_OPERATION_DELETE, 2, 3)
	if st := r.Stats(); in.exceptions.count() != 0 || st.DeltasWithoutInterface != 2 {
		t.Errorf("exceptions after the deletes: got %d, want 0", in.exceptions.count())
	}
	if !in.unheld.Load() || in.repeatFullSyncAt.IsZero() {
		t.Errorf("deletes with an unknown interface: got unheld %t, next full sync at %s, want true and a time", in.unheld.Load(), in.repeatFullSyncAt)
	}
}
