package table

// retracted reports whether the sender of a delta no longer has the record of its current incarnation. The
// sender has deleted that record and has forgotten the tombstone. It then received the record of its
// earlier incarnation from a node that missed the delete.
func retracted(d *Delta, m *meta, opt RemoteOptions) bool {
	return opt.Sender != selfID && m.owner == opt.Sender && d.Owner != m.owner
}

// resendDelete resends a tombstone. It becomes a tombstone of this node if another node owned it. A
// tombstone of an earlier incarnation of the node that has the key is sent unchanged, because the local map
// of that node decides. The sender's own incarnation is never an earlier one, also if its number is lower,
// because the clock was set back.
func (t *Table) resendDelete(s uint32, has, sender OwnerID) {
	m := t.meta(s)
	from, to := &t.owners.list[m.owner], &t.owners.list[has]
	earlier := from.Node == to.Node && from.Incarnation < to.Incarnation && m.owner != sender
	if m.owner == selfID || earlier {
		t.moveTail(s)
		return
	}
	t.stamp(s, m.version+1, selfID)
	t.stats.DeletesResent++
}
