package tabletest

import (
	"fmt"
	"math"
	"time"

	"mapsync/syncd/table"
)

// A filter makes a node unable to exchange the record of a key for a time, in both directions. It is a fault: an
// interface has no name, a number does not fit, or the clock of the node stands still. The rules for such
// records are those of inbound_absence.go in syncd/replicate, and of wire.Encoder.Add.
type filter uint8

const (
	filterNone  filter = iota
	filterKey          // the key cannot be converted
	filterValue        // the key can be converted, the value cannot
)

// filtering is the state of the filters of a node.
type filtering struct {
	filters []filter // by key; nil: none
	// stoppedAt is the time at which the clock that limits versions has stopped; 0: it runs. Only received records
	// depend on it.
	stoppedAt int64
}

// filter returns the filter of a key.
func (f *filtering) filter(key int) filter {
	if f.filters == nil {
		return filterNone
	}
	return f.filters[key]
}

// setFilters begins or ends filters of a node.
func (r *simulation) setFilters(n *Node) {
	switch {
	case !r.config.filters:
		return
	case n.filters != nil || n.stoppedAt != 0:
		n.endFilters()
	case r.chance(0.3):
		n.stoppedAt = n.clock()
	default:
		n.filters = make([]filter, len(r.keys))
		for i := range n.filters {
			if r.chance(0.4) {
				n.filters[i] = filterKey + filter(r.rand.IntN(2))
			}
		}
	}
	r.stats["filters"]++
	r.notef("%s filters %v, clock stopped %v", n.Name, n.filters, n.stoppedAt != 0)
}

// FilterLater makes a node filter records with versions above the present time. The maps are scanned, and the table of the node
// forgets acknowledged tombstones.
func (n *Node) FilterLater() {
	n.stoppedAt, n.forgetAcknowledged, n.world.scans = n.clock(), true, true
}

// endFilters ends the filters. The node sends the records again that it could not send.
func (n *Node) endFilters() {
	old := n.filters
	n.filtering = filtering{}
	if n.Daemon == nil || n.Daemon.tab == nil {
		return
	}
	n.Daemon.unsentDeletes = 0
	n.Daemon.tab.Update(func(tx *table.Tx) {
		head := tx.Head()
		for key, f := range old {
			if f != filterNone {
				tx.Resend(n.Daemon.key(key))
				n.checkResent(tx, key, head)
			}
		}
	})
	n.world.moves++
}

// checkResent checks that a record is sent again: it is above the former end of the order.
func (n *Node) checkResent(tx *table.Tx, key int, end uint64) {
	var r table.Record
	if tx.Get(n.Daemon.key(key), &r) && sendable(&r) && r.Position <= end {
		n.world.fail(fmt.Errorf("%s does not send %s again after its filter has ended", n.Name, n.world.name(key)))
	}
}

// unsent reports whether a node cannot send a record. known is false if it cannot even send a delete.
func (n *Node) unsent(key int, dead bool) (unsent, known bool) {
	f := n.filter(key)
	return f != filterNone && !dead, f != filterKey || !dead
}

// repeatDelay is the time after which a full sync is repeated that brought records which were filtered.
const repeatDelay = int64(3 * time.Second)

// filtered reports whether the receiver filters a delta, and covers its key then.
func (l *InboundStream) filtered(tx *table.Tx, x *delta, opt *table.RemoteOptions, resent bool) bool {
	d, w := l.to, l.to.n.world
	f := d.n.filter(x.key)
	if f == filterNone && !x.unsent && !layouts[d.layout].fits(x.value) {
		f = filterValue
	}
	ahead := d.n.stoppedAt != 0 && int64(x.version) > d.n.stoppedAt
	ahead = ahead || (w.maxAhead > 0 && int64(x.version) > d.n.wall()+w.maxAhead)
	if f == filterValue && x.dead {
		f = filterNone // a delete has no value
	}
	if !x.unsent && f == filterNone && !ahead {
		return false
	}
	if !x.unsent {
		l.repeatAt = w.Now + repeatDelay
	}
	if x.undecided {
		l.cover(tx, x, opt, resent, f)
		return true
	}
	l.noteFiltered(tx, x, opt, resent, f)
	return true
}

// noteFiltered covers the key of a delta that was not merged, as inbound_absence.go of syncd/replicate.
func (l *InboundStream) noteFiltered(tx *table.Tx, x *delta, opt *table.RemoteOptions, resent bool, f filter) {
	l.to.n.world.filtered = true
	l.cover(tx, x, opt, resent, f)
}

// cover is noteFiltered for a record that needs no comparison of the nodes.
func (l *InboundStream) cover(tx *table.Tx, x *delta, opt *table.RemoteOptions, resent bool, f filter) {
	d, w := l.to, l.to.n.world
	key, peer := d.key(x.key), w.Nodes[l.peer].Name
	exact := f != filterKey && !x.vague
	switch {
	case !opt.Touch:
	case exact:
		tx.Cover(key, peer, math.MaxUint64)
	default:
		l.answer(resent).Add(key)
	}
	if !x.dead {
		d.awaited |= 1 << (x.key % 64)
		l.noteOwn(x)
	}
	switch {
	case x.dead:
		l.unheld = l.unheld || !x.unsent && !resent
	case x.owner.Node == d.n.Name:
		tx.NoteUnheld(key, x.version)
		l.unheld = l.unheld || !x.unsent
	case tx.IsRestored(x.version) && (x.unsent || x.owner.Node != peer): // the owner may lack the record
	default:
		d.noteOwner(tx, x, exact)
		l.noteSuperseded(tx, x, exact)
	}
	if w.trace != nil {
		w.trace("%s > %s: %s v%d %s: filtered", peer, d.n.Name, w.name(x.key), x.version, x.owner.Node)
	}
}

// noteOwn notes a filtered record of an earlier incarnation of the receiver.
func (l *InboundStream) noteOwn(x *delta) {
	if x.unsent || x.owner.Node != l.to.n.Name {
		return
	}
	if l.filteredOwn == nil {
		l.filteredOwn = make(map[int]table.Version)
	}
	l.filteredOwn[x.key] = x.version
}

// lacksOwn reports whether the receiver lacks a record of its own that it has filtered, and has not forgotten its delete.
func (l *InboundStream) lacksOwn(key int, v table.Version) bool {
	return l != nil && l.filteredOwn[key] == v && v != 0 && !l.to.Content(key).Known && l.to.floor() == 0
}

// noteSuperseded notes that the peer has a record of a key that was filtered, as inbound_absence.go of syncd/replicate.
func (l *InboundStream) noteSuperseded(tx *table.Tx, x *delta, exact bool) {
	d, w := l.to, l.to.n.world
	peer := table.Owner{Node: w.Nodes[l.peer].Name, Incarnation: l.inc}
	switch {
	case x.owner.Node != peer.Node:
	case exact:
		d.noteSuperseded(tx, x, l.peer)
		tx.NoteSuperseded(d.key(x.key), x.version, peer)
	default:
		tx.NoteUndecoded(d.key(x.key), peer, l.round)
	}
}

// answer returns the coverage of the answer that a message belongs to.
func (l *InboundStream) answer(resent bool) *table.Coverage {
	if resent {
		return &l.repair.coverage
	}
	return &l.coverage
}
