package wire

import (
	"encoding/binary"
	"fmt"
	"slices"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/table"
)

const (
	// MaxDigests is the maximum number of node digests in a message, besides that of orphaned records.
	MaxDigests = 128
	// BucketBytes is the encoded size of the digest of one bucket in bytes.
	BucketBytes = 8
	// BucketSetBytes is the encoded size of a set of buckets in bytes, one bit for each bucket.
	BucketSetBytes = table.DigestBuckets / 8
)

// Digests is the checked content of a Digest message of a peer.
//
// The names, sizes and numbers of elements are checked. Whether the digests are comparable depends on
// Key, Scope and Members, which the caller compares with its own.
type Digests struct {
	// Position is the position of the stream of the peer that the digests describe. All changes up to it
	// are in the digests, and later ones are not.
	Position uint64
	// Key is the fingerprint of the digest key, Scope the fingerprint of the compared parts of entries.
	Key, Scope uint64
	// Nodes are the digests of live owners, at most MaxDigests and at most one for each node. They are
	// in the order of the message.
	Nodes []NodeDigest
	// Orphaned is the digest of all orphaned records; nil: not sent.
	Orphaned *NodeDigest
	// Members is the fingerprint of the live nodes in the view of the peer.
	Members uint64
	// InconclusiveReason is why the peer cannot digest all records; empty: it can.
	InconclusiveReason string
}

// NodeDigest is the digest of the records of one owner, or of all orphaned records. It owns its memory.
type NodeDigest struct {
	// Node is the name of the owner; empty: the digest covers all orphaned records.
	Node string
	// Digest is the digest of all buckets together. Its numbers are those of the peer, which can send
	// any.
	Digest table.Digest
	// Buckets are the digests of the single buckets; nil: not sent.
	Buckets *table.Buckets
}

// DigestsFromProto checks and returns the content of a message. The errors wrap ErrMalformed.
//
// A second digest of one node is an error, because the comparison could not decide which of them counts.
// With an error, d is incomplete.
func DigestsFromProto(m *mapsyncv1.Digest) (d Digests, err error) {
	if n := len(m.GetNodes()); n > MaxDigests {
		return d, fmt.Errorf("read %d digests, more than %d: %w", n, MaxDigests, ErrMalformed)
	}
	d = Digests{Position: m.GetPosition(), Key: m.GetKeyFingerprint(), Scope: m.GetScopeFingerprint(), Members: m.GetMembersFingerprint(), InconclusiveReason: m.GetInconclusiveReason()}
	for _, n := range m.GetNodes() {
		if err := CheckName(n.GetNode()); err != nil {
			return d, err
		}
		if slices.ContainsFunc(d.Nodes, func(o NodeDigest) bool { return o.Node == n.GetNode() }) {
			return d, fmt.Errorf("read a second digest of %q: %w", n.GetNode(), ErrMalformed)
		}
		nd, err := NodeDigestFromProto(n)
		if err != nil {
			return d, err
		}
		d.Nodes = append(d.Nodes, nd)
	}
	if n := m.GetOrphaned(); n != nil {
		nd, err := NodeDigestFromProto(n)
		if err != nil {
			return d, err
		}
		// The name means nothing here, so a peer cannot choose one.
		nd.Node, d.Orphaned = "", &nd
	}
	return d, nil
}

// NodeDigestFromProto checks and returns one digest, except for its name. It may have all buckets or
// none. The errors wrap ErrMalformed.
//
// The sums of the buckets need not add up to the sum of the digest. A peer that sends such sums causes
// repairs, which it could cause in other ways, too.
func NodeDigestFromProto(n *mapsyncv1.NodeDigest) (nd NodeDigest, err error) {
	// The limit keeps Live positive as an int.
	nd = NodeDigest{Node: n.GetNode(), Digest: table.Digest{
		Sum: n.GetSum(), VersionSum: n.GetVersionSum(), Live: int(min(n.GetLive(), 1<<62)),
	}}
	switch buckets := n.GetBuckets(); len(buckets) {
	case 0:
	case BucketBytes * table.DigestBuckets:
		nd.Buckets = new(table.Buckets)
		for b := range nd.Buckets {
			nd.Buckets[b] = binary.LittleEndian.Uint64(buckets[BucketBytes*b:])
		}
	default:
		return nd, fmt.Errorf("read digest with parts of %d bytes: %w", len(buckets), ErrMalformed)
	}
	return nd, nil
}

// NodeDigestToProto returns the wire format of the digest of a node's records, or of all orphaned
// records if node is empty. buckets are the digests of the single buckets; nil: they are not sent. It
// keeps none of its arguments. Buckets make a digest 8 KiB larger.
func NodeDigestToProto(node string, digest table.Digest, buckets *table.Buckets) *mapsyncv1.NodeDigest {
	d := &mapsyncv1.NodeDigest{Node: node, Sum: digest.Sum, VersionSum: digest.VersionSum, Live: uint64(digest.Live)}
	if buckets != nil {
		d.Buckets = appendBuckets(make([]byte, 0, BucketBytes*len(buckets)), buckets)
	}
	return d
}

// appendBuckets appends the wire format of buckets. Each sum has BucketBytes bytes, little-endian.
func appendBuckets(b []byte, buckets *table.Buckets) []byte {
	for _, sum := range buckets {
		b = binary.LittleEndian.AppendUint64(b, sum)
	}
	return b
}

// EncodeBucketSet returns the wire format of a set of buckets. Bucket b is bit b%8 of byte b/8. The
// result has BucketSetBytes bytes, and the caller owns it.
func EncodeBucketSet(s *table.BucketSet) (b []byte) {
	for _, w := range s {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	return b
}

// DecodeBucketSet returns a set of buckets from its wire format, or nil if the size is wrong. It does
// not keep b. An empty set is valid.
func DecodeBucketSet(b []byte) *table.BucketSet {
	if len(b) != BucketSetBytes {
		return nil
	}
	s := new(table.BucketSet)
	for i := range s {
		s[i] = binary.LittleEndian.Uint64(b[8*i:])
	}
	return s
}
