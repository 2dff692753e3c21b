package replicate

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"mapsync/internal/poll"
	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/replicate/wire"
	"mapsync/syncd/table"
)

// TestDiffListsEveryKindOfDifference lists every kind of difference between two nodes.
func TestDiffListsEveryKindOfDifference(t *testing.T) {
	a, b := startSyncedPair(t)
	// Nothing is repaired during the test.
	for _, n := range []*node{a, b} {
		for _, s := range n.r.inboundStreams {
			s.mu.Lock()
			s.maps[testMap].comparison.repairAfter = time.Now().Add(time.Hour)
			s.mu.Unlock()
		}
	}
	b.tb.Update(func(tx *table.Tx) {
		for k, v := range map[int]table.Version{5: 1 << 61, 9000: 7} {
			d := table.Delta{Key: key(k), Value: value(6), Version: v, Owner: tx.Intern(a.self)}
			tx.Remote(&d, 1<<61, table.RemoteOptions{})
		}
	})
	corruptValue(t, b, 17)
	poll.Within(t, deadline, "the audit is complete", func() bool { return b.tb.Stats().AuditFound > 0 })
	list, err := b.r.Diff(t.Context(), testMap, "a")
	if err != nil {
		t.Fatalf("list differences: got error %v, want nil", err)
	}
	got := make(map[string]Difference)
	for _, d := range list {
		got[string(d.Key)] = d
	}
	newer, only, value := got[string(key(5))], got[string(key(9000))], got[string(key(17))]
	switch {
	case len(list) != 3:
		t.Errorf("differences: got %d, want 3: %+v", len(list), list)
	case newer.Here == nil || newer.There == nil || newer.Here.Version != 1<<61 || newer.There.Version >= 1<<61:
		t.Errorf("newer here: got %+v, want version 1<<61 here and a lower version there", newer)
	case only.Here == nil || only.There != nil:
		t.Errorf("only here: got %+v, want a record here and none there", only)
	case value.Here == nil || value.There == nil || value.Here.Version != value.There.Version || string(value.Here.Value) == string(value.There.Value):
		t.Errorf("another value: got %+v, want records on both sides with the same version and different values", value)
	}
	if _, err := b.r.Diff(t.Context(), testMap, "unknown"); !errors.Is(err, ErrNotFound) {
		t.Errorf("diff with an unknown peer: got %v, want ErrNotFound", err)
	}
	if _, err := b.r.Diff(t.Context(), "none", "a"); !errors.Is(err, ErrNotFound) {
		t.Errorf("diff of an unknown map: got %v, want ErrNotFound", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	progress := 0
	if err := b.r.Resync(ctx, testMap, func(_ []string, done, _ int) { progress = max(progress, done) }); err != nil {
		t.Fatalf("resync: got error %v, want nil", err)
	}
	if !sameLive(a, b) {
		t.Error("resync: got different maps, want equal maps")
	}
	if err := b.r.Resync(ctx, "none", nil); !errors.Is(err, ErrNotFound) {
		t.Errorf("resync of an unknown map: got %v, want ErrNotFound", err)
	}
}

// TestInvalidDigests sends digests that violate the protocol.
func TestInvalidDigests(t *testing.T) {
	r, tb := newTestReplicator(t)
	digest := func(change func(*mapsyncv1.Digest)) *mapsyncv1.SubscribeResponse {
		m := &mapsyncv1.Digest{Map: 1, KeyFingerprint: tb.DigestID(), ScopeFingerprint: tb.DigestScope(), Nodes: []*mapsyncv1.NodeDigest{{Node: "x", Sum: 5}}}
		change(m)
		return &mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Digest{Digest: m}}
	}
	unrequested := stockBatch(1, 0, 0, 1)
	unrequested.GetBatch().Resent = true
	for want, m := range map[string]*mapsyncv1.SubscribeResponse{
		"129 digests":               digest(func(d *mapsyncv1.Digest) { d.Nodes = make([]*mapsyncv1.NodeDigest, wire.MaxDigests+1) }),
		"with parts of 9 bytes":     digest(func(d *mapsyncv1.Digest) { d.Orphaned = &mapsyncv1.NodeDigest{Buckets: make([]byte, 9)} }),
		`node name "" of 0 bytes`:   digest(func(d *mapsyncv1.Digest) { d.Nodes[0].Node = "" }),
		"second digest of \"x\"":    digest(func(d *mapsyncv1.Digest) { d.Nodes = append(d.Nodes, d.Nodes[0]) }),
		"parts of 7 bytes":          digest(func(d *mapsyncv1.Digest) { d.Nodes[0].Buckets = make([]byte, 7) }),
		"unknown subscription 2":    digest(func(d *mapsyncv1.Digest) { d.Map = 2 }),
		"unrequested end of resend": {Message: &mapsyncv1.SubscribeResponse_Resent{Resent: &mapsyncv1.Resent{Map: 1}}},
		"unrequested resent batch":  unrequested,
	} {
		s, _ := newAcceptedStream(r, Peer{Node: "x", Incarnation: 1})
		if err := s.handle(mustMarshal(t, m)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("handle digest: want error %q, got: %v", want, err)
		}
	}
	// A peer that always sends another digest is requested to resend repeatedly, at growing
	// intervals, without any other effect.
	s, in := newAcceptedStream(r, Peer{Node: "x", Incarnation: 1})
	parts := make([]byte, wire.BucketBytes*table.DigestBuckets)
	parts[0] = 1
	divergent := mustMarshal(t, digest(func(d *mapsyncv1.Digest) { d.Nodes[0].Buckets = parts }))
	end := mustMarshal(t, &mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Resent{Resent: &mapsyncv1.Resent{Map: 1, Unsent: 3}}})
	asked := 0
	for range 200 {
		in.comparison.rateLimitTime = time.Time{} // as if the digests arrived at intervals
		if err := s.handle(divergent); err != nil {
			t.Fatalf("handle message: got error %v, want nil", err)
		}
		for _, m := range s.appendComparisons(nil) {
			if m.GetResend() != nil {
				asked++
				if err := s.handle(end); err != nil {
					t.Fatalf("handle message: got error %v, want nil", err)
				}
			}
		}
	}
	if asked != 1 || in.comparison.divergent != 3 || in.comparison.inSync || len(live(tb)) != 0 {
		t.Errorf("resend requests: got %d, want 1: %+v", asked, in.comparison)
	}
}

// TestComparisonsAreCountedOnce has a peer with another layout whose entries change owner
// continuously. Each comparison counts as divergent and as nothing else.
func TestComparisonsAreCountedOnce(t *testing.T) {
	r, tb := newTestReplicator(t)
	inbound, in := newAcceptedStream(r, Peer{Node: "x", Incarnation: 1})
	const rounds = 3 * maxVersionSumRounds
	for i := range uint64(rounds) {
		in.comparison.rateLimitTime = time.Time{} // as if the digests arrived at intervals
		m := &mapsyncv1.Digest{Map: 1, KeyFingerprint: tb.DigestID(), ScopeFingerprint: tb.DigestScope() + 1, Nodes: []*mapsyncv1.NodeDigest{{Node: "x", VersionSum: i + 1}}}
		if err := inbound.handle(mustMarshal(t, &mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Digest{Digest: m}})); err != nil {
			t.Fatalf("handle message: got error %v, want nil", err)
		}
	}
	if !strings.Contains(in.comparison.impossibleReason, "another layout") {
		t.Errorf("status: got reason %q, want the other layout", in.comparison.impossibleReason)
	}
	if s := r.Stats(); s.Digests != rounds || s.DigestsDivergent != rounds || s.DigestsImpossible != 0 {
		t.Errorf("comparisons: got %d, %d divergent, %d impossible, want %d, %d, 0", s.Digests, s.DigestsDivergent, s.DigestsImpossible, rounds, rounds)
	}
}
