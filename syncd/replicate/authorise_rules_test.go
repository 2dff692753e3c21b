package replicate

import (
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/schema"
	"mapsync/syncd/table"
)

// TestWhoseRecordsAreAccepted is the rule, by owner, for the stream of peer x to node b.
func TestWhoseRecordsAreAccepted(t *testing.T) {
	x := newStreamless(t)
	x.r.SetPeers([]Peer{x.l.current(), {Node: "c", Incarnation: 9, Addr: "127.0.0.1:1"}})
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
		"the peer's own":             {"x", 1, plain, nil, false, accepted},
		"an earlier incarnation":     {"x", 0, plain, nil, false, accepted},
		"a later incarnation":        {"x", 2, plain, nil, false, rejectIncarnation},
		"a later one in a repair":    {"x", 2, plain, nil, true, rejectIncarnation},
		"this node's earlier one":    {"b", 1, plain, nil, false, accepted},
		"this node's own":            {"b", 2, plain, nil, false, accepted},
		"a later one of this node":   {"b", 3, plain, nil, false, rejectIncarnation},
		"not requested":              {"c", 9, plain, nil, false, rejectUnrequested},
		"requested":                  {"c", 9, &permit{peer: "x", nodes: []string{"c"}}, nil, false, accepted},
		"in a repair":                {"c", 9, plain, nil, true, accepted},
		"without a permit":           {"c", 9, nil, nil, false, accepted},
		"orphaned, not requested":    {"z", 9, plain, nil, false, rejectUnrequested},
		"orphaned":                   {"z", 9, &permit{peer: "x", orphaned: true}, nil, false, accepted},
		"all":                        {"c", 9, &permit{peer: "x", all: true}, nil, false, accepted},
		"the future":                 {"z", future, &permit{peer: "x", orphaned: true}, nil, false, rejectIncarnation},
		"may not write":              {"x", 1, plain, func(n string) bool { return n != "x" }, false, rejectOwner},
		"may not write, in a repair": {"c", 9, plain, func(n string) bool { return n == "x" }, true, rejectOwner},
		"this node always may":       {"b", 1, plain, func(string) bool { return false }, false, accepted},
	} {
		x.in.permit = c.permit
		x.in.m.access.Write = c.write
		w := &wireOwner{node: []byte(c.node), number: c.incarnation}
		if got := x.in.verdict(x.r.view.Load(), w, c.repair); got != c.want {
			t.Errorf("%s: %q, want %q", name, rejectionNames[got], rejectionNames[c.want])
		}
	}
	x.in.permit, x.in.m.access.Write = plain, nil
	owners := []wireOwner{{node: []byte("c"), number: 9}, {node: []byte("x"), number: 1}}
	for range 2 {
		if x.in.authorise(owners); !slices.Equal(x.in.verdicts, []rejection{rejectUnrequested, accepted}) {
			t.Errorf("verdicts %v", x.in.verdicts)
		}
	}
	x.in.job = &job{}
	if x.in.authorise(owners); x.in.verdicts[0] == accepted {
		t.Error("what comes in turn during a repair counts as the repair's")
	}
	x.l.batch.retold = true
	if x.in.authorise(owners); x.in.verdicts[0] != accepted {
		t.Error("records of a repair are rejected")
	}
}

// TestRejectedRecordsAreCountedAndLogged by reason; those above the limit once.
func TestRejectedRecordsAreCountedAndLogged(t *testing.T) {
	var out strings.Builder
	r, err := New(Options{Self: table.Owner{Node: "b", Incarnation: 2}, Dial: noDial, Logger: slog.New(slog.NewTextHandler(&out, nil))})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.AddMap(testMap, Layout{KeySize: testKeySize, ValueSize: testValueSize}, newTable(t, r.opt.Self, false)); err != nil {
		t.Fatal(err)
	}
	_, in := acceptedLink(r, Peer{Node: "x", Incarnation: 1})
	lines := func() int { return strings.Count(out.String(), "records rejected") }
	in.noteRejected(&merged{})
	if lines() != 0 || in.requesting.withheld {
		t.Errorf("nothing was rejected: %s", out.String())
	}
	var res merged
	res.rejected[rejectOwner], res.rejected[rejectIncarnation] = 2, 3
	in.noteRejected(&res)
	if lines() != 1 || in.requesting.withheld || !strings.Contains(out.String(), `reasons="write_from 2, incarnation 3"`) {
		t.Errorf("withheld %t, logged %s", in.requesting.withheld, out.String())
	}
	res = merged{}
	res.rejected[rejectUnrequested] = 1
	in.noteRejected(&res)
	if lines() != 2 || !in.requesting.withheld {
		t.Errorf("withheld %t, logged %s", in.requesting.withheld, out.String())
	}
	res = merged{}
	res.rejected[rejectLimit] = 4
	in.noteRejected(&res)
	in.noteRejected(&res)
	if lines() != 3 || !strings.Contains(out.String(), "max-records-factor") {
		t.Errorf("logged %s", out.String())
	}
	for reason, want := range map[string]uint64{"incarnation": 3, "limit": 8, "unrequested": 1, "write_from": 2} {
		if got := r.Rejected()[reason]; got != want || len(r.Rejected()) != int(rejections)-1 {
			t.Errorf("%s: counted %d, want %d", reason, got, want)
		}
	}
}

// TestPermitsTogether allow what either of two allows.
func TestPermitsTogether(t *testing.T) {
	a, b := &permit{peer: "x", nodes: []string{"c", "e"}, fallback: true}, &permit{peer: "x", nodes: []string{"a", "c"}, all: true, orphaned: true}
	for _, p := range []*permit{a.with(b), b.with(a)} {
		if !p.all || !p.orphaned || !slices.Equal(p.nodes, []string{"a", "c", "e"}) || p.peer != "x" {
			t.Errorf("%+v", p)
		}
	}
	if p := a.with(a); p.all || p.orphaned || !p.fallback || b.with(a).fallback != true || a.with(b).fallback {
		t.Errorf("%+v", p)
	}
}

// TestRecordsOfABatch has records of every kind in one batch.
func TestRecordsOfABatch(t *testing.T) {
	x := newStreamless(t)
	z := table.Owner{Node: "z", Incarnation: 1}
	ahead := uint64(time.Now().Add(2 * x.r.opt.MaxClockAhead).UnixNano())
	m := stockBatch(x.in.index, 0, 10)
	b := m.GetBatch()
	b.Owners = append(b.Owners, &mapsyncv1.Incarnation{Node: "c", Number: 9}, &mapsyncv1.Incarnation{Node: "z", Number: 1})
	x.r.SetPeers([]Peer{x.l.current(), {Node: "c", Incarnation: 9, Addr: "127.0.0.1:1"}})
	b.Deltas = []*mapsyncv1.Delta{record(1, value(1), 5, 0), record(2, value(2), ahead, 0), record(3, value(3), 5, 1), record(4, nil, 5, 0)}
	if err := x.l.take(mustMarshal(t, m)); err != nil || x.in.state == StateFailed {
		t.Fatal(err, x.in.err)
	}
	s := x.r.Stats()
	if s.Received.Batches != 1 || s.Received.Deltas != 4 || s.Received.Bytes < 40 || s.DeltasAccepted != 2 || s.DeltasAhead != 1 || s.DeltasRefused != 0 || x.r.Rejected()["unrequested"] != 1 {
		t.Errorf("%+v, rejected %v", s, x.r.Rejected())
	}
	if len(live(x.tb)) != 1 || live(x.tb)[1] != 1 {
		t.Errorf("live %v", live(x.tb))
	}
	if m, _ := (&node{r: x.r}).status("x", testMap); m.In.Deltas != 4 || m.DeltasAccepted != 2 || m.DeltasRefused != 1 {
		t.Errorf("%+v", m)
	}
	// An expiry leaves a newer record alone, a delete does not.
	enterRemote(x.tb, z, 5, 70)
	m = stockBatch(x.in.index, 10, 20)
	m.GetBatch().Owners[0] = &mapsyncv1.Incarnation{Node: "z", Number: 1}
	d := record(70, nil, 5, 0)
	d.Operation = mapsyncv1.Operation_OPERATION_EXPIRE
	m.GetBatch().Deltas = []*mapsyncv1.Delta{d}
	x.in.err = nil
	x.take(m)
	var rec table.Record
	x.tb.View(func(tx *table.Tx) { tx.Get(key(70), &rec) })
	if !rec.Expired {
		t.Errorf("an expiry is taken for something else: %+v", rec)
	}
	// Batches that break the rules set the map aside.
	for want, change := range map[string]func(*mapsyncv1.Batch){
		"operation 0":            func(b *mapsyncv1.Batch) { b.Deltas[0].Operation = 0 },
		"operation 4":            func(b *mapsyncv1.Batch) { b.Deltas[0].Operation = 4 },
		"without a version":      func(b *mapsyncv1.Batch) { b.Deltas[0].Version = 0 },
		"owner 1 of 1":           func(b *mapsyncv1.Batch) { b.Deltas[0].Owner = 1 },
		"read key":               func(b *mapsyncv1.Batch) { b.Deltas[0].Key = []byte{0xff} },
		"read value":             func(b *mapsyncv1.Batch) { b.Deltas[0].Value = []byte{0xff} },
		"from 1 to 10 at 0":      func(b *mapsyncv1.Batch) { b.PreviousPosition = 1 },
		"from 18446744073709551": func(b *mapsyncv1.Batch) { b.PreviousPosition = 1<<64 - 1 },
	} {
		x := newStreamless(t)
		m := stockBatch(x.in.index, 0, 10, 1)
		change(m.GetBatch())
		if err := x.l.take(mustMarshal(t, m)); err != nil || x.in.state != StateFailed || !strings.Contains(text(x.in.err), want) {
			t.Errorf("expected %q, got: %v, %v", want, err, x.in.err)
		}
		if s := x.r.Stats(); s.BadMessages != 1 || (s.Gaps == 1) != errors.Is(x.in.err, errGap) || x.in.position != 0 {
			t.Errorf("%s: %d bad messages, %d gaps", want, s.BadMessages, s.Gaps)
		}
		if x.l.byIndex[1] != nil || x.in.retry.IsZero() {
			t.Errorf("%s: the subscription goes on", want)
		}
	}
	// A batch that goes back is a gap.
	x = newStreamless(t)
	x.take(stockBatch(1, 0, 10, 1))
	if err := x.l.take(mustMarshal(t, stockBatch(1, 10, 9, 1))); err != nil || !errors.Is(x.in.err, errGap) {
		t.Errorf("%v, %v", err, x.in.err)
	}
	// Before a map was accepted, and of another incarnation, they end the stream.
	x = newStreamless(t)
	x.in.state = StateWaiting
	if err := x.l.take(mustMarshal(t, stockBatch(1, 0, 10, 1))); !errors.Is(err, errProtocol) {
		t.Errorf("before it was accepted: %v", err)
	}
	x.in.state = StateSyncing
	m = stockBatch(1, 0, 10, 1)
	m.GetBatch().Origin.Number = 2
	if err := x.l.take(mustMarshal(t, m)); !errors.Is(err, errProtocol) || len(live(x.tb)) != 0 {
		t.Errorf("of another incarnation: %v", err)
	}
}

// TestRecordsThatARepairLeaves: what is set aside in a repair counts as left, unless it can never fit.
func TestRecordsThatARepairLeaves(t *testing.T) {
	x := newStreamless(t)
	j := &job{in: new(table.BucketSet), before: 1}
	x.in.comparing.job = j
	m := x.outOfTurn(1, 2, 3)
	ahead := uint64(time.Now().Add(2 * x.r.opt.MaxClockAhead).UnixNano())
	m.GetBatch().Deltas[0].Version = ahead
	x.r.SetPeers([]Peer{x.l.current(), {Node: "c", Incarnation: 9, Addr: "127.0.0.1:1"}})
	m.GetBatch().Owners = append(m.GetBatch().Owners, &mapsyncv1.Incarnation{Node: "c", Number: 9})
	m.GetBatch().Deltas[2].Owner = 1 // another live node's: new here, and not compared with this peer
	x.take(m)
	if j.left != 1 || j.found != 1 || len(live(x.tb)) != 2 {
		t.Errorf("%d left, %d found, live %v", j.left, j.found, live(x.tb))
	}
	x.take(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Retold{Retold: &mapsyncv1.Retold{Map: 1, Untold: 5}}})
	if x.in.comparing.divergent != 1+1+5 {
		t.Errorf("%d diverge", x.in.comparing.divergent)
	}
	x.in.comparing.job, x.in.comparing.unsent = &job{in: new(table.BucketSet)}, 4
	x.take(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Retold{Retold: &mapsyncv1.Retold{Map: 1, Untold: 5}}})
	if x.in.comparing.divergent != 1 {
		t.Errorf("%d diverge, of which 4 are known to be unsent", x.in.comparing.divergent)
	}
}

// TestWhoKnowsARecord: in a repair, the peer knows its own records, and a fallback sender the orphaned
// ones.
func TestWhoKnowsARecord(t *testing.T) {
	x := newStreamless(t)
	x.r.SetPeers([]Peer{x.l.current(), {Node: "c", Incarnation: 9, Addr: "127.0.0.1:1"}, {Node: "d", Incarnation: 9, Addr: "127.0.0.1:1"}})
	var owners []wireOwner
	for _, node := range []string{"x", "b", "c", "d", "z"} {
		owners = append(owners, wireOwner{node: []byte(node), number: 1})
	}
	for _, fallback := range []bool{false, true, true} {
		x.in.permit = &permit{peer: "x", fallback: fallback, nodes: []string{"c"}}
		x.in.judge(owners)
		same := table.ReplaceNothing
		if fallback {
			same = table.ReplaceSame
		}
		if !slices.Equal(x.in.counts, []bool{true, false, true, false, true}) ||
			!slices.Equal(x.in.knows, []table.Replace{table.ReplaceOwn, table.ReplaceNothing, table.ReplaceNothing, table.ReplaceNothing, same}) {
			t.Errorf("fallback %t: counts %v, knows %v", fallback, x.in.counts, x.in.knows)
		}
	}
}

// TestEntriesWithoutTheirInterface are set aside and come again; a delete of one is none.
func TestEntriesWithoutTheirInterface(t *testing.T) {
	s := linkSchema()
	r, err := New(Options{Self: table.Owner{Node: "b", Incarnation: 2}, Dial: noDial})
	if err != nil {
		t.Fatal(err)
	}
	tb := newSizedTable(t, r.opt.Self, s.Key.Size, s.Value.Size, false)
	if err := r.AddMap(testMap, Layout{KeySize: s.Key.Size, ValueSize: s.Value.Size, Schema: s, Links: &links{names: []string{"eth0"}}}, tb); err != nil {
		t.Fatal(err)
	}
	l, in := acceptedLink(r, Peer{Node: "x", Incarnation: 1})
	enc, err := schema.NewEncoder(s, &links{names: []string{"eth0", "eth1", "eth2"}})
	if err != nil {
		t.Fatal(err)
	}
	send := func(from, to uint64, op mapsyncv1.Operation, keys ...byte) {
		t.Helper()
		m := stockBatch(1, from, to)
		for _, k := range keys {
			wire, err := enc.AppendKey(nil, []byte{k, 0, 0, 0})
			if err != nil {
				t.Fatal(err)
			}
			m.GetBatch().Deltas = append(m.GetBatch().Deltas, &mapsyncv1.Delta{Key: wire, Version: 5, Operation: op})
		}
		if err := l.take(mustMarshal(t, m)); err != nil || in.state == StateFailed {
			t.Fatal(err, in.err)
		}
	}
	send(0, 10, mapsyncv1.Operation_OPERATION_UPDATE, 2, 1, 3)
	st := r.Stats()
	if tb.Stats().Live != 1 || st.DeltasWithoutLink != 2 || st.DeltasRefused != 2 || in.excepted.count() != 2 || in.rewalk.IsZero() {
		t.Errorf("%d live, %d without an interface, %d refused, again at %s", tb.Stats().Live, st.DeltasWithoutLink, st.DeltasRefused, in.rewalk)
	}
	send(10, 20, mapsyncv1.Operation_OPERATION_DELETE, 2, 3)
	if st := r.Stats(); in.excepted.count() != 0 || st.DeltasWithoutLink != 2 {
		t.Errorf("%d exceptions after their deletes", in.excepted.count())
	}
}
