package table

// DefaultRecordsFactor is the default number of live records that a table holds for each entry of its
// kernel map.
const DefaultRecordsFactor = 2

// A table holds at most Options.MaxLive live records, so that no peer fills the memory of this node. Half
// of that is common to all owners. The other half is divided into equal shares for the live nodes, this
// node included. No other node can use such a share. Owners that are not live use the common half. The
// table always admits changes of this node, because its kernel map limits them. Peers send the records of
// its earlier incarnations. The table admits as many of them as the kernel map has entries, and more while
// there is room.
//
// Evicted records are the first to leave. A full table expires one of its own evicted records for each
// record of a peer, as long as this node has more records than its share. All tables have about the same
// limit. A record that the owner's map no longer holds must not take the place of a record that is in use.

// admitsOver reports whether a live record of an owner may take the place of a slot, 0 for a new key. A live record that
// changes its owner leaves the number of live records as it is, but frees room of its former owner. It therefore needs
// admission, too, unless it uses the common half already. It may expire an evicted record.
func (t *Table) admitsOver(id OwnerID, s uint32, now int64) bool {
	if s == 0 || !t.meta(s).live() {
		return t.admits(id, now)
	}
	from, to := &t.owners.list[t.meta(s).owner], &t.owners.list[id]
	if from.ours == to.ours && from.group == to.group {
		return true
	}
	reserved := from.ours || t.owners.live[from.Node]
	return !reserved || from.digest.live > t.share() || t.admits(id, now)
}

// admits reports whether one more live record of an owner may enter. It may expire an evicted record for
// that.
func (t *Table) admits(id OwnerID, now int64) bool {
	limit, o := t.opt.MaxLive, &t.owners.list[id]
	switch {
	case limit == 0 || t.stats.Live < limit/2:
		return true
	case o.ours && o.digest.live < max(t.opt.MaxEntries, t.share()):
		return true
	case t.admitted > 0:
		t.admitted--
		return true
	}
	return t.fits(o, limit) || t.expireForRoom(now)
}

// fits decides whether a record of an owner may enter. It may also admit some of the next records.
func (t *Table) fits(o *ownerInfo, limit int) bool {
	share := t.share()
	if t.owners.live[o.Node] && o.digest.live < share {
		return true
	}
	room := limit - t.stats.Live - t.unusedShare(t.owners.list[selfID].Node, share)
	for node := range t.owners.live {
		room -= t.unusedShare(node, share)
	}
	if room <= 0 {
		return false
	}
	t.admitted = min(room/8, 1024)
	return true
}

// share returns the number of live records that is reserved for each live node.
func (t *Table) share() int { return t.opt.MaxLive / 2 / (len(t.owners.live) + 1) }

// expireForRoomSteps limits the number of evicted records that one call of expireForRoom looks at.
const expireForRoomSteps = 16

// expireForRoom expires the oldest evicted record that this node may expire: an orphaned one, or one of its
// own if it has more than its share. It returns false if it found none.
func (t *Table) expireForRoom(now int64) bool {
	spare := t.owners.list[selfID].digest.live > t.share()
	for range min(expireForRoomSteps, t.evicted.len()) {
		q := t.evicted.pop()
		m := t.meta(q.slot)
		switch {
		case !t.expirable(m):
			m.flags &^= flagInEvicted
		case m.is(pendingEvicted), t.ours(m.owner) && !spare:
			t.evicted.push(q)
		default:
			t.expireQueued(q.slot, now)
			return true
		}
	}
	return false
}

// unusedShare returns the unused part of a node's share, in records.
func (t *Table) unusedShare(node string, share int) int {
	live := 0
	if d := t.digester.nodes[node]; d != nil {
		live = d.live
	}
	return max(0, share-live)
}

// Rejected returns the number of records of peers that did not enter because of Options.MaxLive. Remote
// returned Refused for each.
func (tx *Tx) Rejected() uint64 { return tx.t.stats.Rejected }
