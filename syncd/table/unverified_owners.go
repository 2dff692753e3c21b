package table

// An unverified owner is an owner that was never in the membership: it left before this node started, or a peer
// invented it. Its records arrive as orphaned records. The table accepts them, but defends two kinds of
// records against them: live records of this node, and live records of a live node. The exception is a live
// node that itself sends the unverified owner's record in place of its own, and a restored record of a node that
// owned records at the last stop of this node, over another restored one. The table also defends a record of a
// live node against records of an earlier incarnation of this node, which any peer may send. These have a version later
// than the start of this incarnation, or arrive after the entries of the start are adopted: the peers have sent this
// node's own records by then, and one peer could change the entries of all live nodes in its name. That includes restored
// records of this node.
//
// Tables converge, although another node may have accepted the delta that this node refused. Two cases
// exist. If the defended record is this node's, or the delta has this node as its owner, this node sends
// its content with a version above the delta's. Otherwise the owner of the defended record does that as
// soon as it receives the delta. If the owner has accepted the delta, a repair transfers the delta to this
// node.
//
// A repair does not transfer a delete after the defended record is deleted, too, because digests leave
// tombstones out. A later write with a lower version would then win on this node, and lose on the nodes
// that have the tombstone. The table therefore stores the refused delete, and accepts it once the key is
// deleted. See refused_deletes.go.

// defend reports whether the table keeps a record although a delta is above it. It stamps the record with a
// version above the delta's if this node sends it.
func (t *Table) defend(d *Delta, s uint32, now int64, opt RemoteOptions) bool {
	m := t.meta(s)
	from, current := &t.owners.list[d.Owner], &t.owners.list[m.owner]
	switch {
	case !m.live() || m.version == 0 || !t.isNewer(d, m):
		return false
	case t.isRestored(m.version) && t.isRestored(d.Version) && t.owners.stopped[from.Node] && (from.unverified || !t.adopted):
		return false // all nodes were stopped, and the owner may start later
	case !current.ours && !t.owners.live[current.Node]:
		return false
	case !current.ours && t.owners.list[opt.Sender].Node == current.Node:
		return false // the owner itself has accepted the delta
	case !from.unverified && (current.ours || uint64(d.Version) <= t.opt.Self.Incarnation && !t.adopted):
		return false
	}
	switch {
	case current.ours || from.ours:
		t.stamp(s, d.Version+1, selfID)
	case d.Delete && !d.Expired:
		t.refusals.note(d, from.Owner, now)
	}
	t.stats.Defended++
	return true
}
