package table

// DefaultRecordsFactor is how many live records a table holds for each entry of its kernel map when
// the settings do not say.
const DefaultRecordsFactor = 2

// A table holds at most Options.MaxLive live records, so that no peer fills the memory of this node.
// Half of that is common. The other half is divided among the live nodes, this one included, as
// shares that no other node can use. Owners that are not live use the common half. Records that
// this node owns always enter: its kernel map bounds them.
//
// Evicted records go first. A full table expires one of its own for each record of a peer, as long
// as this node has more records than its share: all tables have about the same limit, so a
// record that its owner's map does not hold must not take the room of one that is in use.

// admits reports whether one more live record of an owner may enter. It may expire an evicted one.
func (t *Table) admits(id OwnerID, now int64) bool {
	limit := t.opt.MaxLive
	switch {
	case limit == 0 || t.stats.Live < limit/2 || t.ours(id):
		return true
	case t.admitted > 0:
		t.admitted--
		return true
	}
	return t.fits(&t.owners.list[id], limit) || t.makeWay(now)
}

// fits makes the decision of admits anew. It may admit some of the next records with this one.
func (t *Table) fits(o *ownerInfo, limit int) bool {
	share := t.share()
	if t.owners.live[o.Node] && o.digest.live < share {
		return true
	}
	room := limit - t.stats.Live - t.unused(t.owners.list[selfID].Node, share)
	for node := range t.owners.live {
		room -= t.unused(node, share)
	}
	if room <= 0 {
		return false
	}
	t.admitted = min(room/8, 1024)
	return true
}

// share returns how many live records each live node may have in any case.
func (t *Table) share() int { return t.opt.MaxLive / 2 / (len(t.owners.live) + 1) }

// makeWaySteps bounds how many evicted records one call of makeWay looks at.
const makeWaySteps = 16

// makeWay expires the oldest evicted record that this node may give up: an orphaned one, or one of
// its own above its share. It returns false if it found none.
func (t *Table) makeWay(now int64) bool {
	spare := t.owners.list[selfID].digest.live > t.share()
	for range min(makeWaySteps, t.evicted.len()) {
		q := t.evicted.pop()
		m := t.meta(q.slot)
		switch {
		case !t.expirable(m):
			m.flags &^= flagInEvicted
		case m.is(openEvicted), t.ours(m.owner) && !spare:
			t.evicted.push(q)
		default:
			t.giveUp(q.slot, now)
			return true
		}
	}
	return false
}

// unused returns what is left of a node's share.
func (t *Table) unused(node string, share int) int {
	live := 0
	if d := t.digester.nodes[node]; d != nil {
		live = d.live
	}
	return max(0, share-live)
}

// Rejected returns how many records of peers did not enter because of Options.MaxLive. Remote
// returned Refused for each.
func (tx *Tx) Rejected() uint64 { return tx.t.stats.Rejected }
