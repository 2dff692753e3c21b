package replicate

import (
	"encoding/binary"
	"fmt"
	"slices"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/table"
)

// Peers compare what they hold. A sender with nothing left to send sends digests of its own records and
// of all orphaned records. A receiver that has merged everything before such a digest holds the same
// records. A remaining difference is a change in flight from another node: the receiver or a third node
// took over a key, and the sender has not received that change yet. Such differences are temporary. A
// difference is confirmed when a bucket differs by the same sum in two consecutive digests.
//
// The receiver then requests a resend of all records in these buckets, of all owners, and merges
// them by version like any others. Records in these buckets that the receiver holds as the
// sender's, and that the sender does not resend, no longer exist at the sender.

const (
	// maxDigests bounds the node digests in a message.
	maxDigests = 128
	// bucketBytes is the encoded size of the digest of one bucket.
	bucketBytes = 8
	// bucketSetBytes is the encoded size of a set of buckets, one bit for each.
	bucketSetBytes = table.DigestBuckets / 8
)

// peerDigests is the checked content of a Digest message of the peer.
type peerDigests struct {
	// position is the position of the peer's stream that the digests describe.
	position uint64
	// key is the fingerprint of the digest key, scope the fingerprint of the compared parts of entries.
	key, scope uint64
	// nodes are the digests of live owners, at most maxDigests and at most one for each node.
	nodes []nodeDigest
	// orphaned is the digest of all orphaned records; nil: not sent.
	orphaned *nodeDigest
	// members is the fingerprint of the peer's membership, see view.members.
	members uint64
	// inconclusiveReason is why the peer cannot digest all records; empty: it can.
	inconclusiveReason string
}

// nodeDigest is the digest of the records of one owner, or of all orphaned records.
type nodeDigest struct {
	// node is the name of the owner, or orphanedOwner.
	node string
	// digest covers all buckets.
	digest table.Digest
	// buckets are the digests of the single buckets; nil: not sent.
	buckets *table.Buckets
}

// readDigests checks and returns the content of a message. The errors wrap errMalformed.
func readDigests(m *mapsyncv1.Digest) (d peerDigests, err error) {
	if n := len(m.GetNodes()); n > maxDigests {
		return d, fmt.Errorf("read %d digests, more than %d: %w", n, maxDigests, errMalformed)
	}
	d = peerDigests{position: m.GetPosition(), key: m.GetKeyFingerprint(), scope: m.GetScopeFingerprint(), members: m.GetMembersFingerprint(), inconclusiveReason: m.GetInconclusiveReason()}
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
		nd.node, d.orphaned = orphanedOwner, &nd
	}
	return d, nil
}

// readDigest checks and returns one digest. It may have all buckets or none.
func readDigest(n *mapsyncv1.NodeDigest) (nd nodeDigest, err error) {
	nd = nodeDigest{node: n.GetNode(), digest: table.Digest{
		Sum: n.GetSum(), VersionSum: n.GetVersionSum(), Live: int(min(n.GetLive(), 1<<62)),
	}}
	switch buckets := n.GetBuckets(); len(buckets) {
	case 0:
	case bucketBytes * table.DigestBuckets:
		nd.buckets = new(table.Buckets)
		for b := range nd.buckets {
			nd.buckets[b] = binary.LittleEndian.Uint64(buckets[bucketBytes*b:])
		}
	default:
		return nd, fmt.Errorf("read digest with parts of %d bytes: %w", len(buckets), errMalformed)
	}
	return nd, nil
}

// appendBuckets appends the wire format of buckets.
func appendBuckets(b []byte, buckets *table.Buckets) []byte {
	for _, sum := range buckets {
		b = binary.LittleEndian.AppendUint64(b, sum)
	}
	return b
}

// encodeBucketSet returns the wire format of a set of buckets.
func encodeBucketSet(s *table.BucketSet) (b []byte) {
	for _, w := range s {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	return b
}

// decodeBucketSet returns a set of buckets from its wire format, or nil if the size is wrong.
func decodeBucketSet(b []byte) *table.BucketSet {
	if len(b) != bucketSetBytes {
		return nil
	}
	s := new(table.BucketSet)
	for i := range s {
		s[i] = binary.LittleEndian.Uint64(b[8*i:])
	}
	return s
}

// orphanedOwner is the name under which digests by node keep the digest of all orphaned records.
const orphanedOwner = ""

// outgoingDigest is a digest that this node sends.
type outgoingDigest struct{ table.Digest }

// digestOf returns the digest of one node's records, and its buckets if withBuckets is set, else nil.
func digestOf(tx *table.Tx, node string, withBuckets bool) (g outgoingDigest, buckets *table.Buckets) {
	if withBuckets {
		buckets = new(table.Buckets)
	}
	g.Digest = tx.Digest(node, buckets)
	return g, buckets
}

// orphanedDigest returns the digest of all records that are orphaned under a view, and its buckets
// if withBuckets is set. Its size does not depend on the number of nodes that have left.
func orphanedDigest(tx *table.Tx, v *view, withBuckets bool) (g outgoingDigest, buckets *table.Buckets) {
	if withBuckets {
		buckets = new(table.Buckets)
	}
	g.Digest = tx.DigestOfNodes(v.orphaned, buckets)
	return g, buckets
}

// message returns the wire format of the digest of a node.
func (g outgoingDigest) message(node string, buckets *table.Buckets) *mapsyncv1.NodeDigest {
	d := &mapsyncv1.NodeDigest{Node: node, Sum: g.Sum, VersionSum: g.VersionSum, Live: uint64(g.Live)}
	if buckets != nil {
		d.Buckets = appendBuckets(make([]byte, 0, bucketBytes*len(buckets)), buckets)
	}
	return d
}
