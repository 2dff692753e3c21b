package table

import "fmt"

// simModel says what must come of the keys that one load balancer alone writes, going by what it
// wrote and not by tables: what it wrote last, everywhere. Where the rules promise
// less, it knows why, and asks for as much as they do.
type simModel struct {
	sim     *sim
	skewed  bool // clocks are apart
	numbers int  // writes so far
	keys    []modelKey
	floors  []int // by key, see heal
}

// modelKey is what is known of one key.
type modelKey struct {
	home    int // the only node whose load balancer writes it, or -1: all do
	written bool
	last    entryValue // written last, unless
	gone    bool       // it was deleted
	deleted int        // the number of the last delete
	at      int        // when, in writes so far
	when    int64      // the same in time
	close   bool       // the one before was at about the same moment
	unseen  bool       // the daemon cannot know of it yet
	// early: the daemon had attached the map, or heard of the key, at about the same moment. By the
	// time in its event the write may have come before.
	early bool
	told  int64 // when the daemon heard of it last
	// forgot is when the daemon forgot the delete while a node was away; 0: it did not.
	forgot int64

	// spoilt: another node came to decide about it, as a claim or with the owner gone.
	spoilt bool
	// unsure: the daemon's own write raced with it, and which one came last is what counts.
	unsure bool
	// muddled: that has happened once, so that later writes may be of lower numbers.
	muddled bool
	// loose: the map was lost, so that what others have heard of is all there is.
	loose bool
	// evicted: perhaps it counts as deleted.
	evicted bool
	// wasEvicted: an older value of it may expire.
	wasEvicted bool
	// missing has a bit for each other node whose map a standby's collector or
	// an eviction took it from.
	missing uint32
}

// A value names its key and its write. Two bytes mean nothing by themselves, where masks say so.
const (
	volatileByte = 6
	localByte    = 7
)

var (
	significantMask = []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0}
	carriedMask     = []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0}
	keptBytes       = []Range{{localByte, 1}}
)

// value makes the next value for a key.
func (m *simModel) value(key int) entryValue {
	m.numbers++
	n := m.numbers
	return entryValue{1, byte(n), byte(n >> 8), byte(n >> 16), byte(key)}
}

func (v *entryValue) number() int { return int(v[1]) | int(v[2])<<8 | int(v[3])<<16 }

// sameValue compares what nodes hold alike.
func sameValue(a, b entryValue) bool {
	a[volatileByte], a[localByte] = b[volatileByte], b[localByte]
	return a == b
}

// wrote notes a write of a load balancer. known says that a hook told of it.
func (m *simModel) wrote(n *simNode, key int, v entryValue, gone, known bool) {
	k := &m.keys[key]
	switch {
	case k.home < 0:
	case k.home == n.id:
		if gone {
			m.numbers++
			k.deleted = m.numbers
		}
		k.early = (k.early && !gone && sameValue(v, k.last)) || (n.d != nil && n.d.m == n.lb && m.sim.now-max(n.d.since, k.told) < sameMoment+m.sim.tick)
		k.written, k.last, k.gone, k.unseen, k.at = true, v, gone, !known, m.numbers
		k.close, k.when = m.close(k), m.sim.now
		// An entry that is deleted from another map before all peers have sent their records may
		// come back, also where the daemon no longer waits for them and does not know the key. So
		// may one that is deleted unseen by hooks before the daemon has written it into a new map:
		// its absence proves nothing yet.
		k.loose = gone && n.d != nil && ((n.d.awaitsRecords(key) && n.d.how == loadFirst && !n.d.noted) ||
			(!known && n.d.unwritten(key)))
		// A table that takes the key for evicted does not look for it.
		k.unsure = k.evicted && (!known || n.d.awaits(key) > 1)
		k.evicted = k.unsure
	default:
		m.taken(n, key)
	}
}

// close reports whether the events of a write now and of the one before may have the same time.
func (m *simModel) close(k *modelKey) bool { return m.sim.now-k.when < 2*sameMoment+m.sim.tick }

// evicted notes that a map threw a key out.
func (m *simModel) evicted(n *simNode, key int) {
	k := &m.keys[key]
	switch {
	case k.home == n.id:
		// Nobody can read any more which of two writes came last.
		k.wasEvicted = true
		k.evicted, k.unsure = true, k.unsure || k.close || n.d == nil || m.pending(n.d, key)
	case k.home >= 0:
		m.taken(n, key)
	}
}

// taken notes that a key of another node is not in a node's map any more. It comes back,
// unless its owner counts as gone.
func (m *simModel) taken(n *simNode, key int) {
	k := &m.keys[key]
	k.missing |= 1 << n.id
	if n.d != nil && n.d.view.live[k.home] == 0 {
		k.spoilt = true
	}
}

// missed notes that a node counts another as gone.
func (m *simModel) missed(d *simDaemon, node int) {
	for i := range m.keys {
		if k := &m.keys[i]; k.home == node && k.missing&(1<<d.n.id) != 0 {
			k.spoilt = true
		}
	}
}

// pending reports whether a node's table cannot know yet what its load balancer wrote last.
func (m *simModel) pending(d *simDaemon, key int) bool {
	k := &m.keys[key]
	return k.home == d.n.id && (k.unseen || d.awaits(key) > 0)
}

// awaitsRecords reports whether peers may still send a record of a key that the table knows nothing of.
func (d *simDaemon) awaitsRecords(key int) bool {
	return d.state < simReplicating || (!d.heard && !d.content(key).known)
}

// unwritten reports whether a daemon is still to write a live record into its map.
func (d *simDaemon) unwritten(key int) bool {
	if !d.known {
		return false
	}
	_, s := d.tab.find(d.n.sim.keys[key][:])
	return s != 0 && d.tab.meta(s).live() && d.tab.meta(s).is(flagDirty)
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

// read notes what a daemon read of its map. Of what is about to be written or read again it
// takes no notice.
func (m *simModel) read(n *simNode, tx *Tx, r *simRead) {
	k := &m.keys[r.key]
	if !k.unseen || k.home != n.id || r.found == k.gone || (r.found && !sameValue(r.value, k.last)) {
		return
	}
	if _, s := tx.t.find(m.sim.keys[r.key][:]); s == 0 || !tx.t.meta(s).is(flagDirty|flagDoubt) {
		k.unseen = false
	}
}

// dropped notes that an event was thrown away.
func (m *simModel) dropped(n *simNode, key int) {
	if k := &m.keys[key]; k.home == n.id {
		k.unseen = true
		if n.lru { // the key may have been evicted before that, and count as evicted still
			k.unsure, k.evicted = true, true
		}
	}
}

// asked says how much is asked of a key in the end.
func (m *simModel) asked(key int) string {
	switch k := &m.keys[key]; {
	case k.home < 0:
		return "shared"
	case k.spoilt:
		return "spoilt"
	case k.unsure || (k.loose && k.muddled):
		return "unsure"
	case k.loose:
		return "loose"
	case k.evicted:
		return "evicted"
	default:
		return "exact"
	}
}

// overwrites judges a daemon's write into the map of its load balancer.
func (m *simModel) overwrites(d *simDaemon, w *simWrite) {
	k := &m.keys[w.key]
	switch {
	case k.home == d.n.id && d.m != d.n.lb:
		// What is read back there is older than the new map, and may be what the table goes by.
		k.muddled = true
		k.unsure = k.unsure || w.dead != k.gone || !sameValue(w.value, k.last)
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
	case k.spoilt || k.unsure || !k.written || (w.dead == k.gone && (w.dead || sameValue(w.value, k.last))):
	case w.raced || k.at > w.at || k.evicted || k.early:
		k.unsure, k.muddled = true, true
	case !k.loose:
		m.sim.fail(fmt.Errorf("%s writes %s %v over what its own load balancer wrote last, %v",
			d.n.name, m.sim.name(w.key), contentText(w.value, w.dead), contentText(k.last, k.gone)))
	}
}

// claims judges a claim: a node must not take for its own what it was told of, and what
// it rightly takes is not another's any more.
func (m *simModel) claims(d *simDaemon, late bool) {
	t := d.tab
	for s := t.meta(unversioned).next; s != unversioned; s = t.meta(s).next {
		key := m.sim.key(t.key(s))
		if k := &m.keys[key]; k.home != d.n.id {
			k.spoilt = true
		}
		if late {
			continue
		}
		for _, l := range d.links {
			if l == nil || l.passed == 0 || d.view.live[l.peer] != l.inc {
				continue
			}
			p := m.sim.nodes[l.peer].d
			var r Record
			if p == nil || p.self.Incarnation != l.inc {
				continue
			}
			p.tab.View(func(tx *Tx) {
				if tx.Get(m.sim.keys[key][:], &r) && r.Version != 0 && r.Position <= l.passed {
					m.sim.fail(fmt.Errorf("%s claims %s, of which %s has told it", d.n.name, m.sim.name(key), p.n.name))
				}
			})
		}
	}
}

// heal begins the quiet: from here on nothing that any node knows may be lost.
func (m *simModel) heal() {
	m.floors = make([]int, len(m.keys))
	for i := range m.keys {
		k := &m.keys[i]
		k.loose = k.loose || (k.home >= 0 && m.sim.nodes[k.home].d == nil)
		m.floors[i] = m.newest(i)
	}
}

// newest returns the number of the value that is the newest of a key in any table, 0 if
// that is none.
func (m *simModel) newest(key int) int {
	var best simContent
	for _, n := range m.sim.nodes {
		if n.d == nil || !n.d.known {
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

// check compares what tables hold of a key in the end with what they should.
func (m *simModel) check(key int, c *simContent) error {
	k, v, live := &m.keys[key], c.value, c.live()
	if live && (v[4] != byte(key) || v.number() > m.numbers) {
		return fmt.Errorf("key %s is %v, which nobody wrote", m.sim.name(key), contentText(v, false))
	}
	if live && k.home >= 0 && !k.spoilt && c.owner.Node != m.sim.nodes[k.home].name {
		return fmt.Errorf("key %s is %v, although %s alone ever wrote it", m.sim.name(key), c, m.sim.nodes[k.home].name)
	}
	if k.home < 0 || k.spoilt || k.unsure || (k.loose && k.muddled) {
		return nil
	}
	ok := live == !k.gone && (!live || sameValue(v, k.last))
	switch {
	case !k.written:
		ok = !live
	case (k.evicted || (k.loose && k.wasEvicted)) && !live:
		ok = true
	case k.loose && live:
		ok = v.number() >= m.floors[key]
	case k.loose:
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
