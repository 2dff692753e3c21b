package tabletest

import (
	"fmt"

	"mapsync/syncd/table"
)

// Model computes the expected state of the keys that only one load balancer writes. It uses the
// writes of the load balancer and not the tables: every node must hold the last write. Where the rules
// guarantee less, the model weakens the check accordingly.
//
// It observes the world through calls at each write, read and delivery, and changes no table. A weaker
// check must have a reason that docs/replication.md names. Otherwise the rules have a fault.
type Model struct {
	world   *World
	skewed  bool       // the clocks of the nodes differ
	numbers int        // number of writes so far
	keys    []modelKey // by number of the key
	floors  []int      // by key, see heal
}

// modelKey is the state of one key in the model.
type modelKey struct {
	home        int   // the only node whose load balancer writes the key; -1: all nodes
	written     bool  // the load balancer of home has written the key
	last        Value // the last written value, unless gone
	gone        bool  // the last write was a delete
	deleted     int   // number of the last delete
	at          int   // time of the last write, in writes so far
	when        int64 // time of the last write in ns
	closeToLast bool  // the write before the last one has about the same time
	unreported  bool  // no event has reported the last write yet
	// early: the daemon had attached the map, or received a record of the key, at about the time of
	// the write. By the time in its event, the write may have come before.
	early      bool
	receivedAt int64 // time at which the daemon last received a record of the key
	// forgotAt is the time at which the daemon forgot the delete while a node was away; 0: it did not.
	forgotAt int64

	// contested: another node decided about the key, by adoption or while the owner was gone.
	contested bool
	// raceOpen: a write of the daemon raced with the last write, and the later of the two counts.
	raceOpen bool
	// racedBefore: there was such a race before, so that later writes may have lower versions.
	racedBefore bool
	// mayRevert: the map was lost, so that only the records received by other nodes are left.
	mayRevert bool
	// refilled is the number of an older value that the map held when the daemon ended; 0: none. It
	// belongs to a record that had refilled the map.
	refilled int
	// evicted: the key may count as deleted.
	evicted   bool
	evictedAt int64 // time of the last eviction in ns, 0: none
	readAt    int64 // time at which a daemon last entered a value that it read, in ns, 0: never
	// wasEvicted: an older value of the key may expire.
	wasEvicted bool
	// deletedBy is the node that made the last write, a delete of another node's key, plus 1; 0: the home
	// made it. See table.Options.DeletesAny.
	deletedBy int
	// rewritten: the home wrote the key after another node's delete. It ends if a daemon of the home that ends has a
	// record of that.
	rewritten bool
	// cleared has a bit for each node that writes the key, and whose load balancer has cleared it and not written it since.
	cleared uint32
	// handedOver: the load balancer of the home has not written the key since the home was last drained.
	handedOver bool
	// missing has a bit for each other node from whose map a standby's collector or an eviction
	// removed the key.
	missing uint32
}

// NewModel returns the model of a world. homes has the home of each key of the world. -1 is the home of
// a key that all load balancers write.
func NewModel(w *World, homes ...int) *Model {
	m := &Model{world: w}
	for _, home := range homes {
		m.keys = append(m.keys, modelKey{home: home})
	}
	return m
}

// A value identifies its key and its write. Two bytes are not significant if masks are configured. The kernel owns the timer.
const (
	timerByte    = 5
	volatileByte = 6
	localByte    = 7
)

var (
	significantMask = []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0}
	carriedMask     = []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0}
	keptBytes       = []table.Range{{Offset: localByte, Size: 1}}
)

// NextValue returns a value for the next write of a key.
func (m *Model) NextValue(key int) Value {
	m.numbers++
	n := m.numbers
	return Value{1, byte(n), byte(n >> 8), byte(n >> 16), byte(key)}
}

// Number returns the number of the write that NextValue returned the value for.
func (v *Value) Number() int { return int(v[1]) | int(v[2])<<8 | int(v[3])<<16 }

// sameValue reports whether two values agree in the bytes that nodes hold alike.
func sameValue(a, b Value) bool {
	a[volatileByte], a[localByte] = b[volatileByte], b[localByte]
	return equalBytes(a, b)
}

// wrote records a write of a load balancer. reported is true if a hook reported it. A write by another
// node than the home is a delete by its collector.
func (m *Model) wrote(n *Node, key int, v Value, gone, reported bool) {
	k := &m.keys[key]
	if k.cleared&(1<<n.ID) != 0 {
		k.cleared &^= 1 << n.ID
		k.racedBefore = k.racedBefore || k.raceOpen // the delete counts again if the map is lost
		m.clearUncertain(n)
	}
	switch {
	case k.home < 0:
	case k.home == n.ID:
		m.rewrittenAfterDelete(key, gone)
		k.handedOver = false
		// A delete, and a write of the same value, have numbers too.
		if gone || (k.written && !k.gone && v.Number() == k.last.Number()) {
			m.numbers++
		}
		if gone {
			k.deleted = m.numbers
		}
		// Times closer than the margin do not show an order.
		k.early = (k.early && !gone && sameValue(v, k.last)) || (n.Daemon != nil && n.Daemon.m == n.Map && m.world.Now-max(n.Daemon.since, k.receivedAt) < TimestampMargin+m.world.tick)
		k.written, k.last, k.gone, k.unreported, k.at, k.refilled = true, v, gone, !reported, m.numbers, 0
		k.closeToLast, k.when = m.closeToLast(k), m.world.Now
		// An entry may return if it is deleted from another map before all peers have sent their
		// records, and no event reports that, or the daemon no longer waits for the peers and has no record
		// of the key. The same holds for an entry that is deleted without an event before the daemon has
		// written it into a new map: its absence proves nothing yet.
		k.mayRevert = gone && n.Daemon != nil && ((n.Daemon.awaitsRecords(key) && !n.Daemon.inStateFile && (!reported || n.Daemon.state == stateReplicating)) ||
			(!reported && n.Daemon.unwritten(key)))
		// A table that treats the key as evicted does not look for it. If a write of another CPU has
		// about the same time as the eviction, the eviction may count as the later one.
		k.raceOpen = k.evicted && (!reported || n.Daemon.awaits(key) > 1 || m.closeToEviction(k))
		k.evicted = k.raceOpen
		// If a reread has to decide, it cannot distinguish the delete from an eviction.
		if gone && n.lru && (!reported || k.closeToLast || m.closeToRead(k) || (n.Daemon != nil && n.Daemon.awaits(key) > 1)) {
			k.raceOpen, k.evicted = true, true
		}
	case n.opt.DeletesAny:
		m.deletedElsewhere(n, key, reported)
	default:
		m.entryMissing(n, key)
	}
}

// closeToLast reports whether the events of a write now and of the previous write may have the same
// time.
func (m *Model) closeToLast(k *modelKey) bool {
	return m.world.Now-k.when < 2*TimestampMargin+m.world.tick
}

// closeToEviction reports whether the events of a write now and of the last eviction may have the same
// time.
func (m *Model) closeToEviction(k *modelKey) bool {
	return k.evictedAt != 0 && m.world.Now-k.evictedAt < 2*TimestampMargin+m.world.tick
}

// closeToRead reports whether a daemon may have entered a value that it read at about the time of a write now.
func (m *Model) closeToRead(k *modelKey) bool {
	return k.readAt != 0 && m.world.Now-k.readAt < 2*TimestampMargin+m.world.tick
}

// evicted records that a map evicted a key.
func (m *Model) evicted(n *Node, key int) {
	k := &m.keys[key]
	switch {
	case k.home == n.ID:
		// A reread can no longer decide which of two writes came last.
		k.wasEvicted, k.evictedAt = true, m.world.Now
		k.evicted, k.raceOpen = true, k.raceOpen || k.closeToLast || n.Daemon == nil || m.pending(n.Daemon, key) || m.undecided(n.Daemon, key)
	case k.home >= 0:
		m.entryMissing(n, key)
	}
}

// pending reports whether a node's table cannot contain the last write of its load balancer yet. The
// daemon may then overwrite the write with an older record.
func (m *Model) pending(d *Daemon, key int) bool {
	k := &m.keys[key]
	return k.home == d.n.ID && (k.unreported || d.awaits(key) > 0)
}

// read records that a daemon read a key of its map. It ignores keys that are dirty or have a pending
// reread.
func (m *Model) read(n *Node, tx *table.Tx, r *mapRead) {
	k := &m.keys[r.key]
	if k.home == n.ID {
		k.readAt = m.world.Now
	}
	if !k.unreported || k.home != n.ID || r.found == k.gone || (r.found && !sameValue(r.value, k.last)) {
		return
	}
	var rec table.Record
	name := n.Daemon.key(r.key)
	if _, uncertain := n.Daemon.internals().Uncertain(n.Daemon.tab, name); !uncertain && (!tx.Get(name, &rec) || !rec.Dirty) {
		k.unreported = false
	}
}

// found records that a scan has found a difference. If the table did not take the value, which may be
// older than the record, a reread still has to find the change.
func (m *Model) found(n *Node, tx *table.Tx, r *mapRead) {
	k := &m.keys[r.key]
	if c := n.content(tx, r.key); k.home == n.ID && (!c.Live() || !sameValue(c.Value, r.value)) {
		k.unreported = true
	}
}

// dropped records that an event was lost. A scan or a reread has to find the change.
func (m *Model) dropped(n *Node, key int) {
	k := &m.keys[key]
	k.contested = k.contested || k.deletedBy == n.ID+1
	if k.home == n.ID {
		k.unreported = true
		// The absence of an entry that the daemon has yet to write into a new map proves nothing.
		k.mayRevert = k.mayRevert || k.gone && n.Daemon.unwritten(key)
		// The key may have been evicted before, and may still count as evicted. A delete without an event counts
		// as an eviction.
		if n.lru {
			k.raceOpen, k.evicted = true, true
		}
	}
}

// checkWrite checks a write of a daemon into the map of its load balancer. A daemon must not overwrite a
// write of its own load balancer that it has not received, unless the two came at about the same time.
func (m *Model) checkWrite(d *Daemon, w *mapWrite) {
	k := &m.keys[w.key]
	switch {
	case k.home == d.n.ID && d.m != d.n.Map:
		// A value that the daemon reads back there is older than the new map, and may become the state
		// of the table.
		k.racedBefore = true
		k.raceOpen = k.raceOpen || w.dead != k.gone || !sameValue(w.value, k.last)
		return
	case d.m != d.n.Map:
		return
	case k.home != d.n.ID:
		if !w.dead && d.awaits(w.key) == 0 {
			k.missing &^= 1 << d.n.ID
		}
		return
	}
	// The record of an earlier incarnation was filtered, and the table has forgotten the delete when it arrives.
	k.mayRevert = k.mayRevert || k.gone && d.awaited&(1<<(w.key%64)) != 0 && m.world.Now-k.when >= int64(d.n.opt.TombstoneTTL)
	switch {
	case k.contested || k.raceOpen || !k.written || k.deletedBy > 0 || (w.dead == k.gone && (w.dead || sameValue(w.value, k.last))):
	case w.raced || k.at > w.at || k.evicted || k.early:
		k.raceOpen, k.racedBefore = true, true
	case !k.mayRevert:
		m.world.fail(fmt.Errorf("%s overwrites the last write of its load balancer: %s %v, was %v",
			d.n.Name, m.world.name(w.key), contentText(w.value, w.dead), contentText(k.last, k.gone)))
	}
}

// checkAdoption checks an adoption. A node must not adopt an entry whose record a peer has sent. A key
// that it adopts correctly no longer belongs to another node.
func (m *Model) checkAdoption(d *Daemon, late bool) {
	for key := range m.keys {
		k, c := &m.keys[key], d.Content(key)
		// The table forgets that an event has reported the delete. A node that was cut off may have the record.
		// So may one whose record was filtered. The absence from a map that has held the entry is a delete.
		filtered := (d.awaited|d.n.unheldKeys)&(1<<(key%64)) != 0
		held := d.inStateFile && (!filtered || len(d.n.stateUnheld.Hashes) == 0)
		if !c.Live() && (c.version == 0 || c.Owner != d.self) && k.home == d.n.ID && k.gone &&
			// A node that only knows the owner of its entry sends it later.
			(m.world.named(key) || !held && (filtered || !d.receivedFromAll())) {
			k.mayRevert = true
		}
		if !c.Known || c.version != 0 {
			continue
		}
		// A restored record loses against those of all nodes that were killed, and against changed entries.
		if k.home != d.n.ID && !d.internals().Restores(d.tab, d.key(key)) {
			k.contested = true
		}
		// An entry whose record was filtered becomes one of the same owner, with the lowest version. A table that has forgotten
		// deletes may have deleted a record that a peer has sent, before a new map had the entry.
		if late || (d.how == loadRefill && d.floor() > 0) || d.awaited&(1<<(key%64)) != 0 {
			continue
		}
		for _, l := range d.Inbound {
			if l == nil || l.completeTo == 0 || d.view.live[l.peer] != l.inc {
				continue
			}
			p := m.world.Nodes[l.peer].Daemon
			var r table.Record
			if p == nil || p.self.Incarnation != l.inc || p.epoch != l.epoch {
				continue
			}
			p.tab.View(func(tx *table.Tx) {
				// A delete whose key the peer cannot convert is not sent, nor is a record of the receiver itself, nor an entry
				// of which peers have only named the owner, before that has left.
				if tx.Get(p.key(key), &r) && sendable(&r) && !r.Undecided && r.Version != table.NamedVersion && tx.Owner(r.Owner) != d.self &&
					!p.hasRestored(tx, &r) && r.Position <= l.completeTo && (!r.Delete || !m.world.filtered) {
					m.world.fail(fmt.Errorf("%s adopts %s although %s has sent it", d.n.Name, m.world.name(key), p.n.Name))
				}
			})
		}
	}
}

// heal begins the final phase: from here on no record that any node holds may be lost. A node that is
// down for good takes its unsent changes with it, so keys of its load balancer may revert.
func (m *Model) heal() {
	m.floors = make([]int, len(m.keys))
	for i := range m.keys {
		k := &m.keys[i]
		k.mayRevert = k.mayRevert || (k.home >= 0 && m.world.Nodes[k.home].Daemon == nil)
		m.floors[i] = m.newest(i)
	}
}

// newest returns the number of the newest value of a key in any table, 0 if the newest state is a delete
// or unknown. The newest record is the one that wins on all nodes.
func (m *Model) newest(key int) int {
	var best Content
	for _, n := range m.world.Nodes {
		if n.Daemon == nil || !n.Daemon.wasOffered {
			continue
		}
		n.Daemon.tab.View(func(tx *table.Tx) {
			c := n.content(tx, key)
			if c.version == 0 && n.Daemon.m != nil && !n.Daemon.m.entries[key].live {
				return // the event of the delete is on its way, and the table forgets such an entry
			}
			if c.version > best.version || (c.version == best.version && c.Owner.Compare(best.Owner) > 0) {
				best = c
			}
		})
	}
	return best.Value.Number()
}

// Check compares the final state of a key in the tables with the expected state.
//
// It also checks that a value was ever written to that key, and that the owner is the home. The cluster
// must have converged after heal.
func (m *Model) Check(key int, c *Content) error {
	k, v, live := &m.keys[key], c.Value, c.Live()
	if live && (v[4] != byte(key) || v.Number() > m.numbers) {
		return fmt.Errorf("key %s is %v, which was never written", m.world.name(key), contentText(v, false))
	}
	if live && k.home >= 0 && !k.contested && c.Owner.Node != m.world.Nodes[k.home].Name {
		return fmt.Errorf("key %s is %v, although %s alone ever wrote it", m.world.name(key), c, m.world.Nodes[k.home].Name)
	}
	if k.home < 0 || k.contested || k.raceOpen || (k.mayRevert && k.racedBefore) {
		return nil
	}
	ok := live == !k.gone && (!live || sameValue(v, k.last))
	switch {
	case !k.written:
		ok = !live
	case (k.evicted || (k.mayRevert && k.wasEvicted)) && !live:
		ok = true
	case k.mayRevert && live:
		ok = v.Number() >= m.floors[key] || v.Number() == k.refilled
	case k.mayRevert:
		ok = m.floors[key] == 0 || k.deleted > m.floors[key]
	}
	if ok {
		return nil
	}
	return fmt.Errorf("key %s, of %s alone, is %v, and not %v (floor %d)", m.world.name(key), m.world.Nodes[k.home].Name,
		contentText(v, !live), contentText(k.last, k.gone || !k.written), m.floors[key])
}

// contentText returns a value as text, "gone" for a deleted key.
func contentText(v Value, gone bool) string {
	if gone {
		return "gone"
	}
	return valueText(v[:])
}
