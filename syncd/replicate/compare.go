package replicate

import (
	"encoding/binary"
	"fmt"
	"slices"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/table"
)

// Peers compare what they hold. A sender that has nothing more to send says what it holds
// of itself, and of the nodes that are gone and whose records it tells this receiver,
// as digests; a receiver that has merged all that came before holds the same. What can
// differ nevertheless is under way from somebody else: a key that the receiver, or a third
// node, has taken over, and of which the sender has not heard. Such differences come
// and go. A difference is real when a bucket differs by the very same sum twice.
//
// The receiver then has all records in these buckets told again, whoever owns them, and
// merges them by their versions like any others. What it holds as the sender's in these
// buckets, and does not meet, the sender does not have.

const (
	// maxDigests bounds the nodes in a message.
	maxDigests = 64
	bucketSize = 8
	setSize    = table.DigestBuckets / 8
)

// digests is a message of the peer, checked.
type digests struct {
	position   uint64
	key, scope uint64
	nodes      []nodeDigest
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
	d = digests{position: m.GetPosition(), key: m.GetKey(), scope: m.GetScope()}
	for _, n := range m.GetNodes() {
		if err := checkName(n.GetNode()); err != nil {
			return d, err
		}
		if slices.ContainsFunc(d.nodes, func(o nodeDigest) bool { return o.node == n.GetNode() }) {
			return d, fmt.Errorf("read a second digest of %q: %w", n.GetNode(), errMalformed)
		}
		nd := nodeDigest{node: n.GetNode(), sums: table.Digest{
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
			return d, fmt.Errorf("read digest with parts of %d bytes: %w", len(parts), errMalformed)
		}
		d.nodes = append(d.nodes, nd)
	}
	return d, nil
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

// comparable reports whether a node's records are part of what the sender tells the
// receiver, and both hold alike: the sender's own, and those of nodes that are
// gone. What the receiver itself owns, it knows better.
func (v *view) comparable(node, sender, receiver string) bool {
	if node == sender || node == receiver {
		return node == sender
	}
	_, live := v.live[node]
	return !live && node != v.self && (v.survivor == sender || v.survivor == receiver)
}
