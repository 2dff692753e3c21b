package replicate

import (
	"mapsync/syncd/replicate/wire"
	"mapsync/syncd/table"
)

// orphanedDigest returns the digest of all records that are orphaned under a view, and its buckets
// if withBuckets is set. Its size does not depend on the number of nodes that have left.
func orphanedDigest(tx *table.Tx, v *view, withBuckets bool) (d table.Digest, buckets *table.Buckets) {
	if withBuckets {
		buckets = new(table.Buckets)
	}
	return tx.DigestOfNodes(v.orphaned, buckets), buckets
}

// compareOrphaned compares orphaned records. They have no live owner to compare with, so every pair
// of nodes compares them. It returns the reason if it could not compare them. With three nodes, the
// two that remain compare the records of the third. The caller holds the table's lock.
func (in *inboundMap) compareOrphaned(tx *table.Tx, v *view, d *wire.Digests, exact bool, r *comparisonResult) (unknown string) {
	switch {
	case !in.stream.supportsOwnerRequests:
		return "" // an older version of syncd: the digest of its fallback sender covers them
	case d.Orphaned == nil:
		return "the peer sends no digest of orphaned records"
	case d.Members != v.members:
		return "this node and the peer see different live nodes"
	case !in.m.requestsComplete.Load():
		return "orphaned records are still being received"
	}
	local, buckets := orphanedDigest(tx, v, d.Orphaned.Buckets != nil)
	if !exact {
		local.VersionSum += in.exceptionsVersionSum(tx, v.orphaned)
	}
	missing, _ := in.m.unsentDigests(tx) // the peer leaves out its own
	missing.subtractFrom(v.orphaned, &local, buckets)
	r.add(nodeComparison{NodeDigest: *d.Orphaned, local: local, localBuckets: buckets}, exact)
	return ""
}
