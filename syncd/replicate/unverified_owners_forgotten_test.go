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

// receiveInvented receives a batch of orphaned records of owners that the peer has invented.
func (x *inboundFixture) receiveInvented(from, to, version uint64, keys, names []int) {
	x.t.Helper()
	m := stockBatch(x.in.index, from, to)
	b := m.GetBatch()
	b.Owners, b.CaughtUp = nil, false
	for i, k := range keys {
		b.Owners = append(b.Owners, &mapsyncv1.Incarnation{Node: fmt.Sprint("invented", names[i]), Number: 1})
		b.Deltas = append(b.Deltas, wireRecord(k, value(k), version, uint32(i)))
	}
	x.handle(m)
}

func (x *inboundFixture) reviewOwners() {
	x.tb.View((*table.Tx).ReclaimOwners)
	x.r.mu.Lock()
	defer x.r.mu.Unlock()
	x.r.reviewOwners()
}

func intRange(from, to int) (all []int) {
	for i := from; i < to; i++ {
		all = append(all, i)
	}
	return all
}

// TestUnverifiedOwnersAreForgotten has a peer invent other owners for the same keys repeatedly. The node
// stores those that records name, and forgets no tombstone early.
func TestUnverifiedOwnersAreForgotten(t *testing.T) {
	x := newInboundFixture(t)
	x.in.owners.permit = &permit{peer: "x", orphaned: true, fallback: true}
	const each, rounds = 100, 5
	for round := range rounds {
		at := uint64(10 * round)
		x.receiveInvented(at, at+10, 5+at, intRange(0, each), intRange(round*each, (round+1)*each))
		x.reviewOwners()
	}
	if len(x.r.goneAt) != 0 || len(x.r.gone) != each || len(x.r.everLive) != 1 {
		t.Errorf("nodes after the reviews: got %d departures, %d gone, everLive %v, want 0, %d and one node",
			len(x.r.goneAt), len(x.r.gone), x.r.everLive, each)
	}
	if v := x.r.ackSnapshot(time.Now()); !v.hasAbsentNodes(time.Hour) {
		t.Error("absent nodes after unverified owners were found: got false, want true")
	}
}

// TestUnverifiedOwnersAreLoggedOnce checks that one log line names a few of the owners and counts all.
func TestUnverifiedOwnersAreLoggedOnce(t *testing.T) {
	x := newInboundFixture(t)
	x.in.owners.permit = &permit{peer: "x", orphaned: true, fallback: true}
	var out bytes.Buffer
	x.r.opt.Logger = slog.New(slog.NewTextHandler(&out, nil))
	x.receiveInvented(0, 10, 5, intRange(0, 9), intRange(0, 9))
	x.reviewOwners()
	x.reviewOwners()
	line := out.String()
	if strings.Count(line, "\n") != 1 || !strings.Contains(line, "owners=9") || strings.Count(line, "invented") != maxLoggedOwners {
		t.Errorf("log: got %q, want one line with owners=9 and %d names", line, maxLoggedOwners)
	}
}

// BenchmarkReviewOwners measures one review of 20,000 owners that a peer has invented.
func BenchmarkReviewOwners(b *testing.B) {
	const owners = 20_000
	tb, err := table.New(table.Options{KeySize: testKeySize, ValueSize: testValueSize, MaxEntries: 2 * owners, Self: table.Owner{Node: "b", Incarnation: 1}})
	if err != nil {
		b.Fatalf("new table: got error %v, want nil", err)
	}
	r, err := New(Options{Self: tb.Self(), Dial: noDial})
	if err != nil {
		b.Fatalf("new replicator: got error %v, want nil", err)
	}
	if err := r.AddMap(testMap, Layout{KeySize: testKeySize, ValueSize: testValueSize}, tb); err != nil {
		b.Fatalf("add map: got error %v, want nil", err)
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
		b.Fatalf("gone nodes: got %d, want %d", len(r.gone), owners)
	}
}
