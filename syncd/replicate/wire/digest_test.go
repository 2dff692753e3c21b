package wire

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/table"
)

// someBuckets returns buckets of which each differs from the others.
func someBuckets() *table.Buckets {
	b := new(table.Buckets)
	for i := range b {
		b[i] = uint64(i+1) << 40
	}
	return b
}

// TestDigestsOnTheWire checks that digests are unchanged after the conversion to protobuf and back.
func TestDigestsOnTheWire(t *testing.T) {
	digest := table.Digest{Sum: 1 << 63, VersionSum: 2, Live: 3}
	m := &mapsyncv1.Digest{
		Map: 1, Position: 5, KeyFingerprint: 6, ScopeFingerprint: 7, MembersFingerprint: 8, InconclusiveReason: "why",
		Nodes:    []*mapsyncv1.NodeDigest{NodeDigestToProto("x", digest, nil), NodeDigestToProto("y", table.Digest{}, someBuckets())},
		Orphaned: NodeDigestToProto("", digest, someBuckets()),
	}
	m.Orphaned.Node = "ignored"
	got, err := DigestsFromProto(m)
	want := Digests{
		Position: 5, Key: 6, Scope: 7, Members: 8, InconclusiveReason: "why",
		Nodes:    []NodeDigest{{Node: "x", Digest: digest}, {Node: "y", Buckets: someBuckets()}},
		Orphaned: &NodeDigest{Digest: digest, Buckets: someBuckets()},
	}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("digests: got error %v, difference %s, want nil and none", err, diff)
	}
	if got, err := DigestsFromProto(&mapsyncv1.Digest{}); err != nil || cmp.Diff(Digests{}, got) != "" {
		t.Errorf("empty message: got %+v, error %v, want an empty value and no error", got, err)
	}
	if n, err := NodeDigestFromProto(&mapsyncv1.NodeDigest{Live: math.MaxUint64}); err != nil || n.Digest.Live != 1<<62 {
		t.Errorf("number of records above the maximum: got %d, error %v, want %d and nil", n.Digest.Live, err, 1<<62)
	}
}

// TestInvalidDigests checks that invalid digests are errors, and that the maximum number is allowed.
func TestInvalidDigests(t *testing.T) {
	many := func(n int) (nodes []*mapsyncv1.NodeDigest) {
		for range n {
			nodes = append(nodes, &mapsyncv1.NodeDigest{Node: strings.Repeat("n", len(nodes)+1)})
		}
		return nodes
	}
	for want, m := range map[string]*mapsyncv1.Digest{
		"read 129 digests, more than 128":   {Nodes: many(MaxDigests + 1)},
		`read node name "" of 0 bytes`:      {Nodes: []*mapsyncv1.NodeDigest{{}}},
		`read node name "x\x1b" of 2 bytes`: {Nodes: []*mapsyncv1.NodeDigest{{Node: "x\x1b"}}},
		"a second digest of \"x\"":          {Nodes: []*mapsyncv1.NodeDigest{{Node: "x"}, {Node: "y"}, {Node: "x"}}},
		"parts of 7 bytes":                  {Nodes: []*mapsyncv1.NodeDigest{{Node: "x", Buckets: make([]byte, 7)}}},
		"parts of 9 bytes":                  {Orphaned: &mapsyncv1.NodeDigest{Buckets: make([]byte, 9)}},
	} {
		if _, err := DigestsFromProto(m); !errors.Is(err, ErrMalformed) || !strings.Contains(err.Error(), want) {
			t.Errorf("digests: want error %q, got %v", want, err)
		}
	}
	if d, err := DigestsFromProto(&mapsyncv1.Digest{Nodes: many(MaxDigests)}); err != nil || len(d.Nodes) != MaxDigests {
		t.Errorf("read %d digests: got %d, error %v, want all and no error", MaxDigests, len(d.Nodes), err)
	}
}

// TestBucketSetsOnTheWire checks that sets are unchanged after encoding and decoding, and that sets of
// another size are refused.
func TestBucketSetsOnTheWire(t *testing.T) {
	for _, buckets := range [][]int{nil, {0}, {1, 63, 64, table.DigestBuckets - 1}} {
		want := new(table.BucketSet)
		for _, b := range buckets {
			want.Add(b)
		}
		data := EncodeBucketSet(want)
		if got := DecodeBucketSet(data); len(data) != BucketSetBytes || got == nil || *got != *want {
			t.Errorf("set of %v: got %v in %d bytes, want the same set in %d bytes", buckets, got, len(data), BucketSetBytes)
		}
	}
	for _, size := range []int{0, BucketSetBytes - 1, BucketSetBytes + 1} {
		if got := DecodeBucketSet(make([]byte, size)); got != nil {
			t.Errorf("set in %d bytes: got %v, want nil", size, got)
		}
	}
}

// TestNames checks which names of nodes and maps are valid.
func TestNames(t *testing.T) {
	for name, valid := range map[string]bool{
		"": false, "x": true, "ä": true, "\xff": false,
		"a b": false, "a\n": false, "\x1b]0;a\a": false, "a\u009b1m": false, "a\u202eb": false, "a\u200b": false,
		strings.Repeat("n", MaxName): true, strings.Repeat("n", MaxName+1): false,
	} {
		if err := CheckName(name); (err == nil) != valid || err != nil && !errors.Is(err, ErrMalformed) {
			t.Errorf("name %q: got error %v, want valid %t", name, err, valid)
		}
	}
}
