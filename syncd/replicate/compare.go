package replicate

import (
	"encoding/binary"
	"fmt"
	"slices"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/table"
)

// Peers compare what they hold. A sender that has nothing more to send sends digests of its
// own records and of all orphaned ones; a receiver that has merged what came before holds
// the same. A remaining difference is in flight from another node: a key that the
// receiver, or a third node, has taken over, and of which the sender has not received that.
// Such differences come and go. A difference is real when a bucket differs by the very same
// sum twice.
//
// The receiver then has all records in these buckets told again, whoever owns them, and
// merges them by their versions like any others. What it holds as the sender's in these
// buckets, and does not meet, the sender does not have.

const (
	// maxDigests bounds the nodes in a message.
	maxDigests = 128
	bucketSize = 8
	setSize    = table.DigestBuckets / 8
)

// digests is a message of the peer, checked.
type digests struct {
	position   uint64
	key, scope uint64
	nodes      []nodeDigest
	orphaned   *nodeDigest // nil: not sent
	members    uint64
	unknown    string // what the peer cannot compare, empty: nothing
}

type nodeDigest struct {
	node  string
	sums  table.Digest
	parts *table.Buckets // nil: not told
}

// readDigests checks a message. Its errors wrap errMalformed.
func readDigests(m *mapsyncv1.Digest) (d digests, err error) {
	if n := len(m.GetNodes()); n > maxDigests {
		return d, fmt.Errorf("read %d digests, more than %d: %w", n, maxDigests, errMalformed)
	}
	d = digests{position: m.GetPosition(), key: m.GetKey(), scope: m.GetScope(), members: m.GetMembers(), unknown: m.GetUnknown()}
	for _, n := range m.GetNodes() {
		if err := checkName(n.GetNode()); err != nil {
			return d, err
		}
		if slices.ContainsFunc(d.nodes, func(o nodeDigest) bool { return o.node == n.GetNode() }) {
			return d, fmt.Errorf("read a second digest of %q: %w", n.GetNode(), errMalformed)
		}
		nd, err := readDigest(n)
		if err != nil {
			return d, err
		}
		d.nodes = append(d.nodes, nd)
	}
	if n := m.GetOrphaned(); n != nil {
		nd, err := readDigest(n)
		if err != nil {
			return d, err
		}
		nd.node, d.orphaned = orphans, &nd
	}
	return d, nil
}

func readDigest(n *mapsyncv1.NodeDigest) (nd nodeDigest, err error) {
	nd = nodeDigest{node: n.GetNode(), sums: table.Digest{
		Sum: n.GetSum(), Loose: n.GetLoose(), Live: int(min(n.GetLive(), 1<<62)),
	}}
	switch parts := n.GetBuckets(); len(parts) {
	case 0:
	case bucketSize * table.DigestBuckets:
		nd.parts = new(table.Buckets)
		for b := range nd.parts {
			nd.parts[b] = binary.LittleEndian.Uint64(parts[bucketSize*b:])
		}
	default:
		return nd, fmt.Errorf("read digest with parts of %d bytes: %w", len(parts), errMalformed)
	}
	return nd, nil
}

func appendParts(b []byte, parts *table.Buckets) []byte {
	for _, sum := range parts {
		b = binary.LittleEndian.AppendUint64(b, sum)
	}
	return b
}

// setBytes returns a set of buckets as it is on the wire.
func setBytes(s *table.BucketSet) (b []byte) {
	for _, w := range s {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	return b
}

// setOf returns a set of buckets from the wire, nil if that has another size.
func setOf(b []byte) *table.BucketSet {
	if len(b) != setSize {
		return nil
	}
	s := new(table.BucketSet)
	for i := range s {
		s[i] = binary.LittleEndian.Uint64(b[8*i:])
	}
	return s
}

// orphans stands for all orphaned records together where digests are kept by node.
const orphans = ""

// sums is a digest on its way into a message.
type sums struct{ table.Digest }

// digestOf returns the digest of one node's records, and its parts if wanted.
func digestOf(tx *table.Tx, node string, parts bool) (g sums, buckets *table.Buckets) {
	if parts {
		buckets = new(table.Buckets)
	}
	g.Digest = tx.Digest(node, buckets)
	return g, buckets
}

// orphanDigest returns the digest of all orphaned records under a view, which takes the
// same room however many nodes have left.
func orphanDigest(tx *table.Tx, v *view, parts bool) (g sums, buckets *table.Buckets) {
	if parts {
		buckets = new(table.Buckets)
	}
	g.Digest = tx.DigestOfNodes(v.orphaned, buckets)
	return g, buckets
}

// message returns the digest of a node as it is sent.
func (g sums) message(node string, parts *table.Buckets) *mapsyncv1.NodeDigest {
	d := &mapsyncv1.NodeDigest{Node: node, Sum: g.Sum, Loose: g.Loose, Live: uint64(g.Live)}
	if parts != nil {
		d.Buckets = appendParts(make([]byte, 0, bucketSize*len(parts)), parts)
	}
	return d
}
