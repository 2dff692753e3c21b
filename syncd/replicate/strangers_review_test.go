package replicate

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/table"
)

// takeInvented receives a batch of orphaned records of owners that the peer has invented.
func (x *receiver) takeInvented(from, to, version uint64, keys, names []int) {
	x.t.Helper()
	m := stockBatch(x.in.index, from, to)
	b := m.GetBatch()
	b.Owners, b.CaughtUp = nil, false
	for i, k := range keys {
		b.Owners = append(b.Owners, &mapsyncv1.Incarnation{Node: fmt.Sprint("invented", names[i]), Number: 1})
		b.Deltas = append(b.Deltas, record(k, value(k), version, uint32(i)))
	}
	x.take(m)
}

func (x *receiver) review() {
	x.tb.View((*table.Tx).ReclaimOwners)
	x.r.mu.Lock()
	defer x.r.mu.Unlock()
	x.r.reviewOwners()
}

func count(from, to int) (all []int) {
	for i := from; i < to; i++ {
		all = append(all, i)
	}
	return all
}

// TestStrangersAreForgotten: a peer invents other owners again and again for the same keys. The node
// keeps those that records name, and forgets no tombstone early.
func TestStrangersAreForgotten(t *testing.T) {
	x := newStreamless(t)
	x.in.requesting.permit = &permit{peer: "x", orphaned: true, fallback: true}
	const each, rounds = 100, 5
	for round := range rounds {
		at := uint64(10 * round)
		x.takeInvented(at, at+10, 5+at, count(0, each), count(round*each, (round+1)*each))
		x.review()
	}
	if len(x.r.goneAt) != 0 || len(x.r.gone) != each || len(x.r.proven) != 1 {
		t.Errorf("%d departures, %d nodes gone, proven are %v, records name %d owners", len(x.r.goneAt), len(x.r.gone), x.r.proven, each)
	}
	if v := x.r.ackView(time.Now()); !v.absent(time.Hour) {
		t.Error("strangers may not come back")
	}
}

// TestStrangersAreLoggedOnce: one line names a few of the owners and counts all.
func TestStrangersAreLoggedOnce(t *testing.T) {
	x := newStreamless(t)
	x.in.requesting.permit = &permit{peer: "x", orphaned: true, fallback: true}
	var out bytes.Buffer
	x.r.opt.Logger = slog.New(slog.NewTextHandler(&out, nil))
	x.takeInvented(0, 10, 5, count(0, 9), count(0, 9))
	x.review()
	x.review()
	line := out.String()
	if strings.Count(line, "\n") != 1 || !strings.Contains(line, "owners=9") || strings.Count(line, "invented") != maxLoggedOwners {
		t.Errorf("the log is %q", line)
	}
}

// BenchmarkReviewOwners is one review of 20,000 owners that a peer has invented.
func BenchmarkReviewOwners(b *testing.B) {
	const owners = 20_000
	tb, err := table.New(table.Options{KeySize: testKeySize, ValueSize: testValueSize, MaxEntries: 2 * owners, Self: table.Owner{Node: "b", Incarnation: 1}})
	if err != nil {
		b.Fatal(err)
	}
	r, err := New(Options{Self: tb.Self(), Dial: noDial})
	if err != nil {
		b.Fatal(err)
	}
	if err := r.AddMap(testMap, Layout{KeySize: testKeySize, ValueSize: testValueSize}, tb); err != nil {
		b.Fatal(err)
	}
	for i := range owners {
		enterRemote(tb, table.Owner{Node: fmt.Sprint("invented", i), Incarnation: 1}, 5, i)
	}
	back := make(map[string]bool, owners)
	for b.Loop() {
		for node := range r.gone {
			back[node] = false
		}
		r.setGone(back)
		r.reviewOwners()
	}
	if len(r.gone) != owners {
		b.Fatalf("%d nodes are gone, want %d", len(r.gone), owners)
	}
}
