package tabletest

import (
	"slices"
	"time"

	"mapsync/syncd/table"
)

// copyMap begins a copy of the map of a load balancer, or pins the copy in its place. Until then the load balancer uses the
// former map.
func (r *simulation) copyMap(n *Node) {
	e := &r.config.environment
	if n.suspendedAt != 0 {
		return
	}
	if n.copied == nil {
		n.copied = n.newMap()
		for key := range n.Map.entries {
			if x := &n.Map.entries[key]; x.live && e.chance(0.9) {
				v := x.value
				v[timerByte] = 0 // a copy is an update
				n.copied.set(key, v)
			}
		}
		r.notef("%s's load balancer copies its map", n.Name)
		return
	}
	if n.room > 0 && n.copied.n > n.room {
		n.copied = nil
		return
	}
	r.stats["copied maps"]++
	n.Map, n.copied = n.copied, nil
	r.Model.mapCopied(n)
	r.notef("%s's load balancer pins the copy, map %d", n.Name, n.Map.ID)
}

// mapCopied records that a load balancer uses a copy of its map. The copy decides about the node's own keys: an old value
// may win. Where a live peer owns the key, the copy changes nothing.
func (m *Model) mapCopied(n *Node) {
	m.LostMap(n)
	for key := range m.keys {
		k, e := &m.keys[key], &n.Map.entries[key]
		switch {
		case k.home == n.ID && e.live && !k.isLast(e.value):
			k.raceOpen, k.racedBefore = true, true
		case k.home == n.ID && e.live:
			k.mayRevert, k.refilled = false, 0
		}
	}
	if n.Daemon == nil {
		m.unreadMap(n)
	}
}

// unreadMap records that a map waits for the next daemon of a node. It may be a copy with a session of another node that has
// ended. The next daemon may find no record of its key: neither its own, nor that of a peer that has forgotten the delete.
func (m *Model) unreadMap(n *Node) {
	for key := range m.keys {
		k, e := &m.keys[key], &n.Map.entries[key]
		if k.home >= 0 && k.home != n.ID && e.live && !k.isLast(e.value) {
			k.contested = k.contested || k.gone
		}
	}
}

// isLast reports whether a value is the last state of a key.
func (k *modelKey) isLast(v Value) bool { return k.written && !k.gone && sameValue(v, k.last) }

// readCopy records that a daemon enters an entry of a new map. Without a record of a live peer, or if the peer has handed
// another value or a tombstone over, the map decides.
func (m *Model) readCopy(n *Node, tx *table.Tx, r *mapRead) {
	k := &m.keys[r.key]
	if k.home < 0 || k.home == n.ID || !r.found {
		return
	}
	c := n.content(tx, r.key)
	owner := m.world.node(c.Owner.Node)
	departed := !c.Known || owner < 0 || owner == n.ID || n.Daemon.view.live[owner] == 0
	k.contested = k.contested || departed || (c.handedOver(tx) && (c.Dead || !equalBytes(c.Value, r.value)))
}

// copyPending reports whether the entry of a key in the map of a daemon may be a copy that waits for its reread.
func (m *Model) copyPending(d *Daemon, key int) (yes bool) {
	if d.tab == nil || d.m == nil || !d.m.entries[key].live {
		return false
	}
	d.tab.View(func(tx *table.Tx) { yes = tx.PendingCopies() > 0 })
	return yes || d.state == stateLoading
}

// clearMap lets a load balancer clear its map.
func (r *simulation) clearMap(n *Node) {
	d := n.Daemon
	if n.suspendedAt != 0 || d == nil || d.m != n.Map || d.state < stateReplicating || n.Map.n == 0 {
		return
	}
	if r.scans && r.config.environment.chance(0.8) {
		r.awaitPeers(d)
	}
	r.stats["clears"]++
	r.notef("%s's load balancer clears its map", n.Name)
	// A reread that is pending may find that a packet has deleted the entry.
	certain, keys := r.Model.clearIsDetected(n) && d.internals().Rereads(d.tab) == 0, map[int]bool(nil)
	d.tab.View(func(tx *table.Tx) { keys = d.own(tx) })
	r.Model.mapCleared(n)
	n.clearing = true
	for key := range n.Map.entries {
		n.Remove(key, 0, table.ContextSyscall, true, 0)
	}
	n.clearing = false
	for d.eventsPending() {
		for cpu := range d.queue {
			d.Deliver(cpu)
		}
	}
	if certain && r.config.environment.chance(0.5) {
		r.settleClear(n, keys)
	}
	if r.config.environment.chance(0.8) {
		n.stoppedUntil = r.Now + int64(40*time.Second)
	}
}

// clearUncertain records that the number of deletes that wait, or of the entries that are left, has changed after a clear:
// the daemon may not detect it.
func (m *Model) clearUncertain(n *Node) {
	for key := range m.keys {
		k := &m.keys[key]
		k.raceOpen = k.raceOpen || (k.cleared&(1<<n.ID) != 0 && k.home == n.ID && !n.Map.entries[key].live)
	}
}

// absentAtStart records that a daemon starts with a map that may have been cleared while no daemon ran, or just before. The
// daemon decides about all absent entries together, by the records that it receives. A peer may have the record of an entry
// that was deleted before the clear.
func (m *Model) absentAtStart(n *Node) {
	absent := 0
	for key := range m.keys {
		if k := &m.keys[key]; !n.Map.entries[key].live && (k.home < 0 || k.home == n.ID && k.written) {
			absent++
		}
	}
	if n.leastClear == 0 || absent < n.leastClear {
		return // also if entries are left: the daemon needs a proof that they are from before the clear
	}
	for key := range m.keys {
		k := &m.keys[key]
		k.raceOpen = k.raceOpen || (k.home == n.ID && !n.Map.entries[key].live)
	}
}

// absentAfterDetach records that a daemon attaches its map again. If enough of the node's entries were deleted meanwhile, by whatever the
// daemon has not seen, the absent entries may look like a clear.
func (m *Model) absentAfterDetach(n *Node) {
	var absent []*modelKey
	for key := range m.keys {
		if k := &m.keys[key]; k.home == n.ID && k.gone && k.unreported && !n.Map.entries[key].live {
			absent = append(absent, k)
		}
	}
	if n.leastClear == 0 || len(absent) < n.leastClear {
		return
	}
	for _, k := range absent {
		k.raceOpen = true
	}
}

// mapCleared records that a load balancer is about to clear its map. The entries must stay on all nodes if the daemon detects
// the clear. Otherwise each key may be deleted or not.
func (m *Model) mapCleared(n *Node) {
	certain := m.clearIsDetected(n)
	for key := range m.keys {
		k := &m.keys[key]
		switch live := n.Map.entries[key].live; {
		case !live && k.home == n.ID:
			// If a reread finds the absence only now, it looks like a part of the clear.
			c := n.Daemon.Content(key)
			k.raceOpen = k.raceOpen || c.Live() || m.pending(n.Daemon, key)
		case !live:
		case k.home == n.ID:
			k.cleared |= 1 << n.ID
			// The daemon restores what its table has: it may have missed the last write.
			c := n.Daemon.Content(key)
			k.raceOpen = k.raceOpen || !certain || !c.Live() || !equalBytes(c.Value, n.Map.entries[key].value)
		case k.home >= 0:
			m.entryMissing(n, key)
		default:
			k.cleared |= 1 << n.ID
		}
	}
}

// clearIsDetected reports whether a clear of all entries now is certainly detected: all records whose delete would replicate
// have an entry, there are enough of them, and no event is on its way.
func (m *Model) clearIsDetected(n *Node) bool {
	d, count := n.Daemon, 0
	// All entries may have come since a delete in the same round. These do not count for a clear.
	if d.eventsPending() || d.phase != phaseFill || n.lru || !n.runs() || d.internals().InRound(d.tab, n.clock()) {
		return false
	}
	for key := range m.keys {
		c := d.Content(key)
		if !c.Live() {
			continue
		}
		owner := m.world.node(c.Owner.Node)
		departed := d.gone[owner] || d.handedOver(&c)
		if c.version == 0 || d.internals().UsedByPeer(d.tab, d.key(key)) || departed && n.drained() || owner != n.ID && !departed {
			continue
		}
		if !n.Map.entries[key].live || !equalBytes(n.Map.entries[key].value, c.Value) {
			return false
		}
		count++
	}
	return count >= n.leastClear
}

// rekey gives a node the newest digest key, at times a new one.
func (r *simulation) rekey(n *Node) {
	if r.config.environment.chance(0.4) {
		r.digestKey = append(slices.Clone(r.digestKey), 'k')
	}
	n.setDigestKey(r.digestKey)
	r.stats["digest keys"]++
	r.notef("%s has digest key %d", n.Name, len(r.digestKey))
}

// setDigestKey sets the digest key of a node.
func (n *Node) setDigestKey(key []byte) {
	if key == nil {
		return
	}
	n.opt.DigestKey = key
	if n.Daemon != nil && n.Daemon.tab != nil {
		n.Daemon.tab.Update(func(tx *table.Tx) { tx.SetDigestKey(key) })
	}
}

// removeLimit removes the limit of records of a node.
func (n *Node) removeLimit() {
	if n.opt.MaxLive == 0 {
		return
	}
	n.opt.MaxLive = 0
	if n.Daemon != nil && n.Daemon.tab != nil {
		o := n.opt
		o.LRU, o.MaxEntries, o.Room = n.lru, n.room, n.fills()
		n.Daemon.tab.Update(func(tx *table.Tx) { tx.SetMap(o) })
	}
}
