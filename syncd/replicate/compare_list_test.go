package replicate

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/table"
)

// TestDiffLists has a list tell every kind of difference.
func TestDiffLists(t *testing.T) {
	a, b := pair(t)
	// Nothing is to be repaired meanwhile.
	for _, n := range []*node{a, b} {
		for _, l := range n.r.links {
			l.mu.Lock()
			l.intakes[testMap].comparing.retry = time.Now().Add(time.Hour)
			l.mu.Unlock()
		}
	}
	b.tb.Update(func(tx *table.Tx) {
		for k, v := range map[int]table.Version{5: 1 << 61, 9000: 7} {
			d := table.Delta{Key: key(k), Value: value(6), Version: v, Owner: tx.Intern(a.self)}
			tx.Remote(&d, 1<<61, table.RemoteOptions{})
		}
	})
	silently(t, b, 17)
	eventually(t, "audited", func() bool { return b.tb.Stats().AuditFound > 0 })
	list, err := b.r.Diff(t.Context(), testMap, "a")
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]Difference)
	for _, d := range list {
		got[string(d.Key)] = d
	}
	newer, only, value := got[string(key(5))], got[string(key(9000))], got[string(key(17))]
	switch {
	case len(list) != 3:
		t.Errorf("%d differences: %+v", len(list), list)
	case newer.Here == nil || newer.There == nil || newer.Here.Version != 1<<61 || newer.There.Version >= 1<<61:
		t.Errorf("newer here: %+v", newer)
	case only.Here == nil || only.There != nil:
		t.Errorf("only here: %+v", only)
	case value.Here == nil || value.There == nil || value.Here.Version != value.There.Version || string(value.Here.Value) == string(value.There.Value):
		t.Errorf("another value: %+v", value)
	}
	if _, err := b.r.Diff(t.Context(), testMap, "nobody"); !errors.Is(err, ErrNoPeer) {
		t.Errorf("list with nobody: %v", err)
	}
	if _, err := b.r.Diff(t.Context(), "none", "a"); !errors.Is(err, ErrNoPeer) {
		t.Errorf("list of no map: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	told := 0
	if err := b.r.Resync(ctx, testMap, func(_ []string, done, _ int) { told = max(told, done) }); err != nil {
		t.Fatal(err)
	}
	if !sameLive(a, b) {
		t.Error("still different after a resync")
	}
	if err := b.r.Resync(ctx, "none", nil); !errors.Is(err, ErrNoPeer) {
		t.Errorf("resync of no map: %v", err)
	}
}

// TestCompareLies has a peer that says of its digests what is not so.
func TestCompareLies(t *testing.T) {
	r, tb := newReceiver(t)
	digest := func(change func(*mapsyncv1.Digest)) *mapsyncv1.SubscribeResponse {
		m := &mapsyncv1.Digest{Map: 1, Key: tb.DigestID(), Scope: tb.DigestScope(), Nodes: []*mapsyncv1.NodeDigest{{Node: "x", Sum: 5}}}
		change(m)
		return &mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Digest{Digest: m}}
	}
	stray := stockBatch(1, 0, 0, 1)
	stray.GetBatch().Retold = true
	for want, m := range map[string]*mapsyncv1.SubscribeResponse{
		"129 digests":                   digest(func(d *mapsyncv1.Digest) { d.Nodes = make([]*mapsyncv1.NodeDigest, maxDigests+1) }),
		"with parts of 9 bytes":         digest(func(d *mapsyncv1.Digest) { d.Orphaned = &mapsyncv1.NodeDigest{Buckets: make([]byte, 9)} }),
		"node name of 0 bytes":          digest(func(d *mapsyncv1.Digest) { d.Nodes[0].Node = "" }),
		"second digest of \"x\"":        digest(func(d *mapsyncv1.Digest) { d.Nodes = append(d.Nodes, d.Nodes[0]) }),
		"parts of 7 bytes":              digest(func(d *mapsyncv1.Digest) { d.Nodes[0].Buckets = make([]byte, 7) }),
		"unknown subscription 2":        digest(func(d *mapsyncv1.Digest) { d.Map = 2 }),
		"end of what was not asked for": {Message: &mapsyncv1.SubscribeResponse_Retold{Retold: &mapsyncv1.Retold{Map: 1}}},
		"again that was not asked for":  stray,
	} {
		l, _ := acceptedLink(r, Peer{Node: "x", Incarnation: 1})
		if err := l.take(mustMarshal(t, m)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("expected %q, got: %v", want, err)
		}
	}
	// One who claims forever to hold something else is asked again and again, but ever
	// more seldom, and nothing else comes of it.
	l, in := acceptedLink(r, Peer{Node: "x", Incarnation: 1})
	parts := make([]byte, bucketSize*table.DigestBuckets)
	parts[0] = 1
	lie := mustMarshal(t, digest(func(d *mapsyncv1.Digest) { d.Nodes[0].Buckets = parts }))
	end := mustMarshal(t, &mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Retold{Retold: &mapsyncv1.Retold{Map: 1, Untold: 3}}})
	asked := 0
	for range 200 {
		in.comparing.spent = time.Time{} // as if the digests came at intervals
		if err := l.take(lie); err != nil {
			t.Fatal(err)
		}
		for _, m := range l.comparisons(nil) {
			if m.GetRetell() != nil {
				asked++
				if err := l.take(end); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if asked != 1 || in.comparing.divergent != 3 || in.comparing.agreed || len(live(tb)) != 0 {
		t.Errorf("asked %d times, %+v", asked, in.comparing)
	}
}

// TestComparisonsAreCountedOnce has a peer of another layout whose entries change hands all
// the time: each comparison came out different, and none is of another kind as well.
func TestComparisonsAreCountedOnce(t *testing.T) {
	r, tb := newReceiver(t)
	l, in := acceptedLink(r, Peer{Node: "x", Incarnation: 1})
	const rounds = 3 * maxLooseRounds
	for i := range uint64(rounds) {
		in.comparing.spent = time.Time{} // as if the digests came at intervals
		m := &mapsyncv1.Digest{Map: 1, Key: tb.DigestID(), Scope: tb.DigestScope() + 1, Nodes: []*mapsyncv1.NodeDigest{{Node: "x", Loose: i + 1}}}
		if err := l.take(mustMarshal(t, &mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Digest{Digest: m}})); err != nil {
			t.Fatal(err)
		}
	}
	if !strings.Contains(in.comparing.impossible, "another layout") {
		t.Errorf("the status does not say why they cannot be compared: %q", in.comparing.impossible)
	}
	if s := r.Stats(); s.Digests != rounds || s.DigestsDiffer != rounds || s.DigestsImpossible != 0 {
		t.Errorf("%d comparisons: %d differ, %d are impossible", s.Digests, s.DigestsDiffer, s.DigestsImpossible)
	}
}
