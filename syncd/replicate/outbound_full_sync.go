package replicate

import "mapsync/syncd/table"

// beginWhenComplete starts the stream once the table is complete, and reports whether it is. Before
// that it is undecided which records belong to this node. The caller holds the table's lock.
func (out *outboundMap) beginWhenComplete(tx *table.Tx) bool {
	if tx.Unversioned() > 0 {
		out.wasComplete = out.m.begun
		return false
	}
	out.m.begun = true
	out.tableComplete = true
	if out.startPosition == 0 {
		out.fullSyncHead = tx.Head()
	}
	return true
}

// losesPosition reports whether the peer needs a full sync: it misses a delete whose tombstone was
// forgotten before the stream reached it, unless a full sync began after the delete. The caller holds the
// table's lock.
func (out *outboundMap) losesPosition(tx *table.Tx, position uint64) bool {
	floor := tx.Floor()
	return floor > position && floor > out.fullSyncHead
}
