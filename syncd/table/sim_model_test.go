package table

import "fmt"

// simModel computes the expected state of the keys that only one load balancer writes. It uses the
// writes of the load balancer and not the tables: every node must hold the last write. Where the rules
// guarantee less, the model weakens the check accordingly.
type simModel struct {
	sim     *sim
	skewed  bool // the clocks of the nodes differ
	numbers int  // number of writes so far
	keys    []modelKey
	floors  []int // by key, see heal
}

// modelKey is the state of one key in the model.
type modelKey struct {
	home        int // the only node whose load balancer writes the key; -1: all nodes
	written     bool
	last        entryValue // the last written value, unless gone
	gone        bool       // the last write was a delete
	deleted     int        // number of the last delete
	at          int        // time of the last write, in writes so far
	when        int64      // time of the last write in ns
	closeToLast bool       // the write before the last one has about the same time
	unreported  bool       // no event has reported the last write yet
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
	evicted bool
	// wasEvicted: an older value of the key may expire.
	wasEvicted bool
	// missing has a bit for each other node from whose map a standby's collector or an eviction
	// removed the key.
	missing uint32
}

// A value identifies its key and its write. Two bytes are not significant if masks are configured.
const (
	volatileByte = 6
	localByte    = 7
)

var (
	significantMask = []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0}
	carriedMask     = []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0}
	keptBytes       = []Range{{localByte, 1}}
)

// value returns the next value for a key.
func (m *simModel) value(key int) entryValue {
	m.numbers++
	n := m.numbers
	return entryValue{1, byte(n), byte(n >> 8), byte(n >> 16), byte(key)}
}

func (v *entryValue) number() int { return int(v[1]) | int(v[2])<<8 | int(v[3])<<16 }

// sameValue reports whether two values agree in the bytes that nodes hold alike.
func sameValue(a, b entryValue) bool {
	a[volatileByte], a[localByte] = b[volatileByte], b[localByte]
	return a == b
}

// wrote records a write of a load balancer. reported is true if a hook reported it.
func (m *simModel) wrote(n *simNode, key int, v entryValue, gone, reported bool) {
	k := &m.keys[key]
	switch {
	case k.home < 0:
	case k.home == n.id:
		if gone {
			m.numbers++
			k.deleted = m.numbers
		}
		k.early = (k.early && !gone && sameValue(v, k.last)) || (n.d != nil && n.d.m == n.lb && m.sim.now-max(n.d.since, k.receivedAt) < timestampMargin+m.sim.tick)
		k.written, k.last, k.gone, k.unreported, k.at, k.refilled = true, v, gone, !reported, m.numbers, 0
		k.closeToLast, k.when = m.closeToLast(k), m.sim.now
		// An entry may return if it is deleted from another map before all peers have sent their
		// records. This also holds if the daemon no longer waits for the peers and has no record of
		// the key. The same holds for an entry that is deleted without an event before the daemon has
		// written it into a new map: its absence proves nothing yet.
		k.mayRevert = gone && n.d != nil && ((n.d.awaitsRecords(key) && n.d.how == loadFirst && !n.d.inStateFile) ||
			(!reported && n.d.unwritten(key)))
		// A table that treats the key as evicted does not look for it.
		k.raceOpen = k.evicted && (!reported || n.d.awaits(key) > 1)
		k.evicted = k.raceOpen
	default:
		m.entryMissing(n, key)
	}
}

// closeToLast reports whether the events of a write now and of the previous write may have the same
// time.
func (m *simModel) closeToLast(k *modelKey) bool {
	return m.sim.now-k.when < 2*timestampMargin+m.sim.tick
}

// evicted records that a map evicted a key.
func (m *simModel) evicted(n *simNode, key int) {
	k := &m.keys[key]
	switch {
	case k.home == n.id:
		// A reread can no longer decide which of two writes came last.
		k.wasEvicted = true
		k.evicted, k.raceOpen = true, k.raceOpen || k.closeToLast || n.d == nil || m.pending(n.d, key) || m.undecided(n.d, key)
	case k.home >= 0:
		m.entryMissing(n, key)
	}
}

// entryMissing records that a node's map no longer holds a key of another node. The key returns,
// unless its owner counts as gone.
func (m *simModel) entryMissing(n *simNode, key int) {
	k := &m.keys[key]
	k.missing |= 1 << n.id
	if n.d != nil && n.d.view.live[k.home] == 0 {
		k.contested = true
	}
}

// nodeLeft records that a node counts another node as gone.
func (m *simModel) nodeLeft(d *simDaemon, node int) {
	for i := range m.keys {
		if k := &m.keys[i]; k.home == node && k.missing&(1<<d.n.id) != 0 {
			k.contested = true
		}
	}
}

// pending reports whether a node's table cannot contain the last write of its load balancer yet.
func (m *simModel) pending(d *simDaemon, key int) bool {
	k := &m.keys[key]
	return k.home == d.n.id && (k.unreported || d.awaits(key) > 0)
}

// awaitsRecords reports whether peers may still send a record of a key without a record in the table.
func (d *simDaemon) awaitsRecords(key int) bool {
	return d.state < simReplicating || (!d.initialSyncDone && !d.content(key).known)
}

// unwritten reports whether a daemon still has to write a live record into its map.
func (d *simDaemon) unwritten(key int) bool {
	if !d.wasOffered {
		return false
	}
	var r Record
	d.tab.View(func(tx *Tx) { tx.Get(d.n.sim.keys[key][:], &r) })
	return r.Dirty && !r.Delete
}

// awaits returns how many events of a key are on their way to a table.
func (d *simDaemon) awaits(key int) (n int) {
	for cpu := range d.queue {
		for i := range d.queue[cpu] {
			if d.queue[cpu][i].key == key {
				n++
			}
		}
	}
	return n
}

// read records that a daemon read a key of its map. It ignores keys that are dirty or have a pending
// reread.
func (m *simModel) read(n *simNode, tx *Tx, r *simRead) {
	k := &m.keys[r.key]
	if !k.unreported || k.home != n.id || r.found == k.gone || (r.found && !sameValue(r.value, k.last)) {
		return
	}
	var rec Record
	name := m.sim.keys[r.key][:]
	if _, uncertain := n.d.internals().Uncertain(n.d.tab, name); !uncertain && (!tx.Get(name, &rec) || !rec.Dirty) {
		k.unreported = false
	}
}

// dropped records that an event was lost.
func (m *simModel) dropped(n *simNode, key int) {
	if k := &m.keys[key]; k.home == n.id {
		k.unreported = true
		if n.lru { // the key may have been evicted before, and may still count as evicted
			k.raceOpen, k.evicted = true, true
		}
	}
}

// strictness returns how strict the final check of a key is.
func (m *simModel) strictness(key int) string {
	switch k := &m.keys[key]; {
	case k.home < 0:
		return "shared"
	case k.contested:
		return "contested"
	case k.raceOpen || (k.mayRevert && k.racedBefore):
		return "race"
	case k.mayRevert:
		return "may revert"
	case k.evicted:
		return "evicted"
	default:
		return "exact"
	}
}

// checkWrite checks a write of a daemon into the map of its load balancer.
func (m *simModel) checkWrite(d *simDaemon, w *simWrite) {
	k := &m.keys[w.key]
	switch {
	case k.home == d.n.id && d.m != d.n.lb:
		// A value that the daemon reads back there is older than the new map, and may become the state
		// of the table.
		k.racedBefore = true
		k.raceOpen = k.raceOpen || w.dead != k.gone || !sameValue(w.value, k.last)
		return
	case d.m != d.n.lb:
		return
	case k.home != d.n.id:
		if !w.dead && d.awaits(w.key) == 0 {
			k.missing &^= 1 << d.n.id
		}
		return
	}
	switch {
	case k.contested || k.raceOpen || !k.written || (w.dead == k.gone && (w.dead || sameValue(w.value, k.last))):
	case w.raced || k.at > w.at || k.evicted || k.early:
		k.raceOpen, k.racedBefore = true, true
	case !k.mayRevert:
		m.sim.fail(fmt.Errorf("%s overwrites the last write of its load balancer: %s %v, was %v",
			d.n.name, m.sim.name(w.key), contentText(w.value, w.dead), contentText(k.last, k.gone)))
	}
}

// checkAdoption checks an adoption. A node must not adopt an entry whose record a peer has sent. A key
// that it adopts correctly no longer belongs to another node.
func (m *simModel) checkAdoption(d *simDaemon, late bool) {
	for key := range m.keys {
		if c := d.content(key); !c.known || c.version != 0 {
			continue
		}
		if k := &m.keys[key]; k.home != d.n.id {
			k.contested = true
		}
		if late {
			continue
		}
		for _, l := range d.inbound {
			if l == nil || l.completeTo == 0 || d.view.live[l.peer] != l.inc {
				continue
			}
			p := m.sim.nodes[l.peer].d
			var r Record
			if p == nil || p.self.Incarnation != l.inc {
				continue
			}
			p.tab.View(func(tx *Tx) {
				if tx.Get(m.sim.keys[key][:], &r) && r.Version != 0 && r.Position <= l.completeTo {
					m.sim.fail(fmt.Errorf("%s adopts %s although %s has sent it", d.n.name, m.sim.name(key), p.n.name))
				}
			})
		}
	}
}

// heal begins the final phase: from here on no record that any node holds may be lost.
func (m *simModel) heal() {
	m.floors = make([]int, len(m.keys))
	for i := range m.keys {
		k := &m.keys[i]
		k.mayRevert = k.mayRevert || (k.home >= 0 && m.sim.nodes[k.home].d == nil)
		m.floors[i] = m.newest(i)
	}
}

// newest returns the number of the newest value of a key in any table, 0 if the newest state is a
// delete or unknown.
func (m *simModel) newest(key int) int {
	var best simContent
	for _, n := range m.sim.nodes {
		if n.d == nil || !n.d.wasOffered {
			continue
		}
		n.d.tab.View(func(tx *Tx) {
			c := n.content(tx, key)
			if c.version > best.version || (c.version == best.version && c.owner.Compare(best.owner) > 0) {
				best = c
			}
		})
	}
	return best.value.number()
}

// check compares the final state of a key in the tables with the expected state.
func (m *simModel) check(key int, c *simContent) error {
	k, v, live := &m.keys[key], c.value, c.live()
	if live && (v[4] != byte(key) || v.number() > m.numbers) {
		return fmt.Errorf("key %s is %v, which was never written", m.sim.name(key), contentText(v, false))
	}
	if live && k.home >= 0 && !k.contested && c.owner.Node != m.sim.nodes[k.home].name {
		return fmt.Errorf("key %s is %v, although %s alone ever wrote it", m.sim.name(key), c, m.sim.nodes[k.home].name)
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
		ok = v.number() >= m.floors[key] || v.number() == k.refilled
	case k.mayRevert:
		ok = m.floors[key] == 0 || k.deleted > m.floors[key]
	}
	if ok {
		return nil
	}
	return fmt.Errorf("key %s, of %s alone, is %v, and not %v (floor %d)", m.sim.name(key), m.sim.nodes[k.home].name,
		contentText(v, !live), contentText(k.last, k.gone || !k.written), m.floors[key])
}

func contentText(v entryValue, gone bool) string {
	if gone {
		return "gone"
	}
	return valueText(v[:])
}
