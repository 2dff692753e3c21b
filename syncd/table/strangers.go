package table

// A stranger is an owner that membership never had: it left before this node started, or a peer
// invented it. Its records arrive as orphaned records. The table accepts them, but defends two kinds
// of records against them: live records of this node, and live records of a live node, unless that
// node itself sends the stranger's record. It also defends a record of a live node against a record
// of an earlier incarnation of this node whose version is later than the start of this incarnation.
//
// Tables converge, although another node may hold the delta that was refused here. If the defended
// record is this node's, or the delta names this node, this node sends the content that it holds with
// a version above the delta's. Otherwise the owner of the defended record does that as soon as it
// receives the delta; if it has accepted the delta, a repair brings it from there.

// defend reports whether a record is defended against a delta that is above it.
func (t *Table) defend(d *Delta, s uint32, opt RemoteOptions) bool {
	m := t.meta(s)
	from, holds := &t.owners.list[d.Owner], &t.owners.list[m.owner]
	switch {
	case !m.live() || m.version == 0 || !t.beats(d, m):
		return false
	case !holds.ours && !t.owners.live[holds.Node]:
		return false
	case !holds.ours && t.owners.list[opt.Sender].Node == holds.Node:
		return false // the owner itself has accepted the delta
	case !from.stranger && (holds.ours || uint64(d.Version) <= t.opt.Self.Incarnation):
		return false
	}
	if holds.ours || from.ours {
		t.stamp(s, d.Version+1, selfID)
	}
	t.stats.Defended++
	return true
}
