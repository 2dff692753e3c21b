package table

import "math"

// Sweep deletes the live records of all incarnations of a peer whose position is below before, as if that
// peer had deleted them. After a full sync of that node's records, merged with RemoteOptions.Touch, these
// are the records that the node no longer has. The tombstone keeps the version and the owner of the record.
// It therefore wins over that record only, and any other change of the key wins over the tombstone.
//
// acknowledged is the position of this table up to which the peer holds all records. Above it, records of
// earlier incarnations of the node stay: it may have lost its map, and not have received them yet. It decides
// about them when it receives them.
//
// before is the first position that the full sync could assign: Head plus one at its start. now is the wall
// clock in nanoseconds. Sweep looks at up to limit records. While it returns true, the caller calls it
// again with the same cursor. The first call needs a new cursor at position 0.
func (tx *Tx) Sweep(peer Owner, acknowledged, before uint64, now int64, c *Cursor, limit int) (more bool) {
	return tx.t.sweep(peer, nil, acknowledged, before, now, c, limit)
}

// SweepBuckets works like Sweep, but only for the records in some buckets. It also returns the number of
// records that it deleted.
func (tx *Tx) SweepBuckets(node string, in *BucketSet, before uint64, now int64, c *Cursor, limit int) (deleted int, more bool) {
	was := tx.t.stats.Swept
	more = tx.t.sweep(Owner{Node: node}, in, math.MaxUint64, before, now, c, limit)
	return int(tx.t.stats.Swept - was), more
}

// sweep implements Sweep and SweepBuckets. A nil set selects all buckets.
func (t *Table) sweep(peer Owner, in *BucketSet, acknowledged, before uint64, now int64, c *Cursor, limit int) (more bool) {
	for range limit {
		s := c.nextBounded()
		if s == 0 || c.pos >= before {
			return false
		}
		// Compact tombstones are not live.
		if s&compactBit != 0 {
			continue
		}
		m := t.meta(s)
		owner := t.owners.list[m.owner].Owner
		if !m.live() || owner.Node != peer.Node || (owner != peer && c.pos > acknowledged) || (in != nil && !in.Has(t.bucket(t.key(s)))) {
			continue
		}
		t.dropFromDigest(s)
		t.makeTombstone(s, now)
		m.cpu = cpuNone
		t.markDirty(s)
		t.moveTail(s)
		t.stats.Swept++
	}
	return true
}
