package table

import (
	"slices"
	"testing"
	"time"
)

// event is a change of the local map, and its expected outcome.
type event struct {
	want Outcome
	at   int64
	what string
}

// TestRereadWhenEventOrderIsUncertain: the table rereads a key if its events may have arrived in
// another order than the writes. Events of one CPU are in order.
func TestRereadWhenEventOrderIsUncertain(t *testing.T) {
	const moment = timestampMargin
	for name, test := range map[string]struct {
		events []event
		reread bool // after the last event
	}{
		"the same CPU":               {[]event{{Accepted, second, "update k v packet 0"}, {Accepted, second + 1, "update k w packet 0"}}, false},
		"another CPU, same time":     {[]event{{Accepted, second, "update k v packet 0"}, {Accepted, second + moment, "update k w packet 1"}}, true},
		"another CPU, much later":    {[]event{{Accepted, second, "update k v packet 0"}, {Accepted, second + moment + 1, "update k w packet 1"}}, false},
		"same value, same time":      {[]event{{Accepted, second, "update k v packet 0"}, {Unchanged, second + moment, "update k v packet 1"}, {Accepted, second + moment + 1, "update k w packet 1"}}, true},
		"same value, much later":     {[]event{{Accepted, second, "update k v packet 0"}, {Unchanged, second + moment + 1, "update k v packet 1"}, {Accepted, second + moment + 2, "update k w packet 1"}}, false},
		"stale event between":        {[]event{{Accepted, second, "update k v packet 0"}, {Stale, second - 1, "update k w packet 1"}, {Accepted, second + 1, "update k x packet 0"}}, true},
		"before the last event":      {[]event{{Accepted, second, "update k v packet 0"}, {Unchanged, 5 * second, "update k v packet 0"}, {Stale, 3 * second, "update k w packet 0"}}, true},
		"just before the last event": {[]event{{Accepted, second, "update k v packet 0"}, {Unchanged, 5 * second, "update k v packet 0"}, {Accepted, 5*second - moment, "update k w packet 0"}}, true},
		"at the last event":          {[]event{{Accepted, second, "update k v packet 0"}, {Unchanged, 5 * second, "update k v packet 0"}, {Accepted, 5 * second, "update k w packet 0"}}, false},
		"reread, same time":          {[]event{{Accepted, second, "update k v packet 0"}, {Accepted, second + moment, "update k w reread 0"}}, true},
		"reread, much later":         {[]event{{Accepted, second, "update k v packet 0"}, {Accepted, second + moment + 1, "update k w reread 0"}}, false},
		"delete again, same time":    {[]event{{Accepted, second, "delete k - packet 0"}, {Unchanged, second + 2, "delete k - packet 1"}, {Accepted, second + 3, "update k w packet 0"}}, true},
	} {
		r := newRig(t)
		r.local(Accepted, second-moment-9, "update k first packet 0")
		for _, e := range test.events {
			r.takeRereads()
			r.local(e.want, e.at, e.what)
		}
		if got := r.takeRereads() == "k"; got != test.reread {
			t.Errorf("%s: got reread %v, want %v", name, got, test.reread)
		}
	}
}

// TestEventAfterTheSkewHasGrown: an event that arrives after a later one does not get a higher
// version. This also holds if a record of a node whose clock is ahead arrived in between. For a record
// of another node the version decides.
func TestEventAfterTheSkewHasGrown(t *testing.T) {
	r := newRig(t)
	r.local(Accepted, 5*second, "update k v2 packet 0")
	r.remote(Accepted, 5*second, peer, Version(9*second), "ahead", "v")
	r.local(Stale, 5*second-timestampMargin-1, "update k v1 packet 1")
	r.wantRereads("k")
	r.want("k", "v2 v5000000000 a100")
	r.local(Accepted, 5*second-timestampMargin, "update k v1 packet 1")
	r.remote(Accepted, 5*second, peer, Version(20*second), "further", "v")
	r.local(Accepted, 4*second, "update ahead w packet 0")
}

// TestEventsAfterALateDelete: a delete event that arrives late gets the time of its arrival. The
// changes after the delete have earlier times, and are accepted.
func TestEventsAfterALateDelete(t *testing.T) {
	r := newRig(t)
	r.tab.Update(func(tx *Tx) { tx.AdvanceClock(10 * second) })
	r.local(Accepted, 5*second, "update k v packet 0")
	r.local(Accepted, 6*second, "delete k - packet 0")
	r.local(Accepted, 7*second, "update k w packet 0")
	r.local(Accepted, 8*second, "update k x packet 0")
	r.local(Accepted, 9*second, "delete k - packet 0")
	r.want("k", "- v9000000000 a100")
}

// TestRecreationWithTheSameValue: the data plane creates a key again after it has deleted the entry of
// a peer. The key stays, whether the events or the reread arrive first.
func TestRecreationWithTheSameValue(t *testing.T) {
	const ms = second / 1000
	for _, c := range []struct {
		now    int64
		reread bool // before the event
	}{{10 * second, false}, {6 * second, true}} {
		r := newRig(t)
		r.remote(Accepted, 4*second, peer, Version(4*second), "k", "v")
		r.write()
		r.tab.Update(func(tx *Tx) { tx.AdvanceClock(c.now) })
		r.local(Accepted, 6*second, "delete k - packet 0")
		if c.reread {
			r.local(Stale, 6*second+3*ms, "update k v reread 0")
		}
		r.local(Accepted, 6*second+ms, "update k v packet 0")
		if r.write() != "" {
			t.Errorf("reread first %v: written keys: got k, want none", c.reread)
		}
	}
}

// TestStaleEventOfADirtyRecord: the table rereads the key after the write if the event is at most
// timestampMargin older than the record.
func TestStaleEventOfADirtyRecord(t *testing.T) {
	for before, want := range map[int64]string{1: "k", timestampMargin: "k", timestampMargin + 1: ""} {
		r := newRig(t)
		r.remote(Accepted, 5*second, peer, Version(9*second), "k", "v")
		r.local(Stale, 5*second-before, "update k w packet 0")
		r.write()
		if got := r.takeRereads(); got != want {
			t.Errorf("%d ns before: got rereads %q, want %q", before, got, want)
		}
		if st := r.tab.Stats(); st.LocalStale != 1 || st.LocalAccepted != 0 || st.LocalUnchanged != 0 {
			t.Errorf("%d ns before: got stats %+v, want 1 stale change", before, st)
		}
	}
}

// TestLocalCounters: Stats counts each local change once.
func TestLocalCounters(t *testing.T) {
	r := newRig(t)
	r.local(Accepted, second, "update k v packet 0")
	r.local(Accepted, 2*second, "delete k - packet 0")
	r.local(Unchanged, 3*second, "delete k - packet 0")
	r.local(Stale, second, "update k v packet 0")
	r.local(Ignored, second, "evict k - packet 0")
	if st := r.tab.Stats(); st.LocalAccepted != 2 || st.LocalUnchanged != 1 || st.LocalStale != 1 || st.Evictions != 1 {
		t.Errorf("stats: got %+v, want LocalAccepted 2, LocalUnchanged 1, LocalStale 1, Evictions 1", st)
	}
}

// TestRecreatedKeyIsSettled: a deleted key that is created again is reread until it has settled. Stale
// changes and changes of live keys do not start this.
func TestRecreatedKeyIsSettled(t *testing.T) {
	for _, test := range []struct {
		what string
		at   int64
		want Outcome
		next int64
	}{
		{"update k v packet 0", 10 * second, Accepted, 10*second + settleFirst},
		{"update k v packet 0", 5 * second, Stale, 0},
		{"update l w packet 0", 10 * second, Accepted, 0},
		{"update l v packet 0", 10 * second, Unchanged, 0},
		{"delete l - packet 0", 10 * second, Accepted, 0},
	} {
		r := newRig(t, func(o *Options) { o.SettleKeys = 9 })
		for _, k := range []string{"k", "l"} {
			r.local(Accepted, second, "update "+k+" v packet 0")
		}
		r.local(Accepted, 6*second, "delete k - packet 0")
		r.tab.settling = settling{}
		r.local(test.want, test.at, test.what)
		var next int64
		r.tab.Update(func(tx *Tx) { next = tx.Settle(0, 9) })
		if next != test.next {
			t.Errorf("%s at %d: got next %d, want %d", test.what, test.at, next, test.next)
		}
	}
}

// significant makes the last byte of values insignificant.
func significant(o *Options) {
	o.Significant = append(slices.Repeat([]byte{0xff}, valueSize-1), 0)
	o.Refresh = 10 * time.Second
}

// TestRefreshOfAPeersRecord: a write of the same value by the data plane takes over an old record. A
// write by a collector or a reread does not.
func TestRefreshOfAPeersRecord(t *testing.T) {
	for what, want := range map[string]Outcome{
		"update k v packet 0": Accepted, "update k v process 0": Accepted,
		"update k v syscall 0": Unchanged, "update k v reread 0": Unchanged,
	} {
		for _, late := range []bool{true, false} {
			r := newRig(t, significant)
			r.remote(Accepted, second, peer, Version(second), "k", "v")
			r.write()
			at, want := 11*second, want
			if !late {
				at, want = at-1, Unchanged
			}
			r.local(want, at, what)
			n := uint64(0)
			if want == Accepted {
				n = 1
			}
			if st := r.tab.Stats(); st.Refreshed != n {
				t.Errorf("%s at %d: got %d refreshed, want %d", what, at, st.Refreshed, n)
			}
		}
	}
}

// TestNoRefreshOfUnversionedRecord: a reread does not refresh an unversioned record.
func TestNoRefreshOfUnversionedRecord(t *testing.T) {
	r := newRig(t, significant)
	r.do(Accepted, func(tx *Tx) Outcome { return tx.Load(pad("k", keySize), tail(t, 1, 0).Value) })
	r.rereadTail(Unchanged, 100*second, 2)
	r.want("k", r.state("k"))
	if st := r.tab.Stats(); st.Refreshed != 0 || st.Unversioned != 1 {
		t.Errorf("stats: got %+v, want Refreshed 0, Unversioned 1", st)
	}
}

// TestScanCountsNoRefresh: Stats.ScanFound counts stale values and not refreshes.
func TestScanCountsNoRefresh(t *testing.T) {
	r := newRig(t, significant)
	local := tail(t, 1, second)
	r.do(Accepted, func(tx *Tx) Outcome { return tx.Local(local) })
	r.scanTail(Accepted, 100*second, 2)
	if st := r.tab.Stats(); st.ScanFound != 0 || st.Refreshed != 1 || st.Scanned != 1 {
		t.Errorf("scan: got %d found, %d refreshed, want 0 and 1", st.ScanFound, st.Refreshed)
	}
	r.scanTail(Unchanged, 101*second, 2)
	r.remoteTail(200*second, 7)
	r.write()
	r.scanTail(Stale, 150*second, 3)
	if st := r.tab.Stats(); st.ScanFound != 1 || st.Scanned != 3 {
		t.Errorf("scanned %d, found %d, want the older value", st.Scanned, st.ScanFound)
	}
}

// TestInsignificantChangeIsKept: the record stores the change under its old version.
func TestInsignificantChangeIsKept(t *testing.T) {
	r := newRig(t, significant)
	for i, want := range []Outcome{Accepted, Unchanged, Unchanged} {
		r.do(want, func(tx *Tx) Outcome { return tx.Local(tail(t, byte(i+1), second+int64(i))) })
		r.tab.View(func(tx *Tx) {
			var rec Record
			if tx.Get(pad("k", keySize), &rec); rec.Value[valueSize-1] != byte(i+1) || rec.Version != Version(second) {
				t.Errorf("version %d, last byte %d, want %d", rec.Version, rec.Value[valueSize-1], i+1)
			}
		})
	}
}
