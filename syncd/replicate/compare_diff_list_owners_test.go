package replicate

import (
	"fmt"
	"slices"
	"testing"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/replicate/wire"
	"mapsync/syncd/table"
)

// TestDiffListOwners checks that a list covers the records of both nodes and orphaned records.
func TestDiffListOwners(t *testing.T) {
	v := newView(nil, table.Owner{Node: "b", Incarnation: 2}, []Peer{{Node: "x"}, {Node: "c"}})
	var got []string
	for _, node := range []string{"b", "x", "c", "z"} {
		if v.compares(node, "x") {
			got = append(got, node)
		}
	}
	if !slices.Equal(got, []string{"b", "x", "z"}) {
		t.Errorf("owners of the listed records: got %v, want b, x and z", got)
	}
}

// TestDiffListWaitsForAllBuckets checks that a list waits for another digest, which it requests at once,
// if any digest came without buckets.
func TestDiffListWaitsForAllBuckets(t *testing.T) {
	x, l := newListFixture(t)
	c := &x.in.comparison
	wasWoken(x.stream.wake)
	if x.mustCompare(time.Now(), false); listEnded(l) || !c.requestBuckets || !wasWoken(x.stream.wake) {
		t.Error("equal digests without buckets: got no request, want buckets requested and the stream woken")
	}
	x.requestNode()
	x.mustCompare(time.Now(), false, func(m *mapsyncv1.Digest) {
		m.Nodes = append(m.Nodes, &mapsyncv1.NodeDigest{Node: "c", Sum: 1, Buckets: make([]byte, wire.BucketBytes*table.DigestBuckets)})
		m.Nodes[1].Buckets[0] = 1
	})
	if listEnded(l) || c.resendBuckets != nil || l.bucketsChosen {
		t.Errorf("digest of the peer without buckets: got buckets %v, want none", c.resendBuckets)
	}
}

// allBuckets returns the set of all buckets.
func allBuckets() *table.BucketSet {
	all := new(table.BucketSet)
	for b := range table.DigestBuckets {
		all.Add(b)
	}
	return all
}

// TestDiffListTombstonesAndOwners checks the entries of a list for tombstones, for records of different
// owners on both sides, and for entries that this node has not adopted.
func TestDiffListTombstonesAndOwners(t *testing.T) {
	x := newInboundFixture(t)
	x.r.SetPeers([]Peer{x.stream.currentPeer(), {Node: "c", Incarnation: 9, Addr: "127.0.0.1:1"}})
	enterRemote(x.tb, x.stream.peer, 5, 1, 2)
	putTable(t, x.tb, 3, 5, 1)
	now := time.Now().UnixNano()
	x.tb.Update(func(tx *table.Tx) {
		for _, k := range []int{5, 6} {
			tx.Remote(&table.Delta{Key: key(k), Version: 5, Owner: tx.Intern(x.stream.peer), Delete: true}, 5, table.RemoteOptions{})
		}
		tx.Local(&table.Change{Key: key(4), Op: table.OpDelete, Time: now})
		tx.BeginLoad()
		tx.Load(key(7), value(7))
		tx.EndLoad()
	})
	l := newTestList(x)
	x.beginResend(l)
	x.in.comparison.resend.buckets = allBuckets()
	m := x.resentBatch()
	m.GetBatch().Owners = []*mapsyncv1.Incarnation{{Node: "x", Number: 1}, {Node: "c", Number: 9}}
	m.GetBatch().Deltas = []*mapsyncv1.Delta{
		wireRecord(2, nil, 5, 0),      // deleted at the peer with the version of the record here
		wireRecord(3, value(3), 7, 1), // owned by this node here, by c at the peer
		wireRecord(4, value(4), 7, 1), // deleted here by this node, owned by c at the peer
		wireRecord(5, nil, 7, 0),      // deleted on both sides
		wireRecord(7, value(7), 7, 0), // not adopted here
		wireRecord(8, value(8), 7, 1), // owned by c at the peer, absent here
	}
	x.handle(m)
	x.handle(x.resentMessage())
	var got []string
	for _, d := range l.differences {
		got = append(got, fmt.Sprintf("%d here %t there %t", d.Key[7], d.Here != nil, d.There != nil))
	}
	slices.Sort(got)
	want := []string{"1 here true there false", "2 here true there true", "3 here true there true", "7 here false there true"}
	if !listEnded(l) || l.err != nil || !slices.Equal(got, want) {
		t.Errorf("list: ended %t, error %v, differences: got %q, want true, nil, %q", listEnded(l), l.err, got, want)
	}
}
