package replicate

import "mapsync/syncd/table"

// Peers compare what they hold. A sender with nothing left to send sends digests of its own records and
// of all orphaned records. A receiver that has merged everything before such a digest holds the same
// records. A remaining difference is a change in flight from another node: the receiver or a third node
// took over a key, and the sender has not received that change yet. Such differences are temporary. A
// difference is confirmed when a bucket differs by the same sum in two consecutive digests.
//
// The receiver then requests a resend of all records in these buckets, of all owners, and merges
// them by version like any others. Records in these buckets that the receiver holds as the
// sender's, and that the sender does not resend, no longer exist at the sender.

// digestOf returns the digest of one node's records, and its buckets if withBuckets is set, else nil.
func digestOf(tx *table.Tx, node string, withBuckets bool) (d table.Digest, buckets *table.Buckets) {
	if withBuckets {
		buckets = new(table.Buckets)
	}
	return tx.Digest(node, buckets), buckets
}

// orphanedDigest returns the digest of all records that are orphaned under a view, and its buckets
// if withBuckets is set. Its size does not depend on the number of nodes that have left.
func orphanedDigest(tx *table.Tx, v *view, withBuckets bool) (d table.Digest, buckets *table.Buckets) {
	if withBuckets {
		buckets = new(table.Buckets)
	}
	return tx.DigestOfNodes(v.orphaned, buckets), buckets
}
