package tabletest

import (
	"encoding/binary"
	"hash/maphash"
	"slices"

	"mapsync/syncd/table"
)

// exploreState encodes the part of a world that distinguishes it from other worlds, which is
// everything that influences later actions. Times, versions, positions, incarnations and values are
// replaced by their ranks among all of their kind. Two action sequences that lead to equivalent worlds
// therefore lead to one state.
//
// It may omit only parts without influence. A part that is encoded without need only increases the
// number of states.
//
// It is reused: sum empties it.
type exploreState struct {
	raw    []byte             // everything but the ranked numbers
	ranked []rankedNumber     // in the order in which they were added
	kinds  [numKinds][]uint64 // the numbers of each kind, not sorted
	table  int                // the node of the table whose times and positions are added
	cpus   int                // as exploreWorld.cpus
}

// rankedNumber is a number that raw represents by its rank among the numbers of its kind.
type rankedNumber struct {
	kind int
	v    uint64 // the number itself
}

// The kinds of numbers. Versions are comparable between all nodes. Times and positions have one kind
// per table, because a table compares them only with its own.
const (
	kindVersion = iota
	kindIncarnation
	kindValue
	kindTime
	kindPosition = kindTime + exploreNodes
	numKinds     = kindPosition + exploreNodes

	exploreNodes = 4
)

// n adds a small number as it is.
func (x *exploreState) n(v int) { x.raw = binary.AppendVarint(x.raw, int64(v)) }

// is adds flags.
func (x *exploreState) is(all ...bool) {
	for _, b := range all {
		if b {
			x.raw = append(x.raw, 1)
		} else {
			x.raw = append(x.raw, 0)
		}
	}
}

// rank adds a number of which only the rank matters.
func (x *exploreState) rank(kind int, v uint64) {
	x.ranked = append(x.ranked, rankedNumber{kind, v})
	x.kinds[kind] = append(x.kinds[kind], v)
}

// version adds a version, which is comparable between all nodes.
func (x *exploreState) version(v table.Version) { x.rank(kindVersion, uint64(v)) }

// time adds a time by the clock of the current node.
func (x *exploreState) time(v int64) { x.rank(kindTime+x.table, uint64(v)) }

// value adds the number of the write that made a value. Older and newer is all that matters.
func (x *exploreState) value(v Value) { x.rank(kindValue, uint64(v.Number())) }

// position adds a position of the current node's table.
func (x *exploreState) position(p uint64) { x.rank(kindPosition+x.table, p) }

// sum returns a hash of everything that was added. Ranks keep the difference of neighbours up to a few
// nanoseconds or steps, because the rules depend on no larger differences. It empties x for the next
// world.
func (x *exploreState) sum(seed maphash.Seed, step int64) uint64 {
	var places [numKinds]map[uint64]int
	for kind, all := range x.kinds {
		slices.Sort(all)
		all = slices.Compact(all)
		places[kind] = make(map[uint64]int, len(all))
		at := 0
		for i, v := range all {
			if i > 0 {
				at += apart(v-all[i-1], step)
			}
			places[kind][v] = at
		}
		x.kinds[kind] = all[:0]
	}
	for _, m := range x.ranked {
		x.n(places[m.kind][m.v])
	}
	var h maphash.Hash
	h.SetSeed(seed)
	_, _ = h.Write(x.raw)
	x.raw, x.ranked = x.raw[:0], x.ranked[:0]
	return h.Sum64()
}

// apart returns the rank distance of two neighbours that differ by d: 1 for 1 ns, more for a larger
// difference. If a step is about as long as the periods that the rules compare with, it also counts
// the steps, up to a limit.
func apart(d uint64, step int64) int {
	switch {
	case d == 1:
		return 1
	case step > TimestampMargin && step <= maxDisorder:
		return 2 + int(min(d/uint64(step), uint64(maxDisorder/step)+1))
	default:
		return 2
	}
}

// add adds a whole world. It omits the network: explored clusters have no cuts.
func (x *exploreState) add(w *exploreWorld) {
	x.cpus = w.cpus
	x.model(w.Model)
	for i, n := range w.Nodes {
		x.table = i
		x.kernelMap(n.Map, n.Map)
		x.is(n.StateFileMap == n.Map.ID, n.Daemon != nil)
		// Rules distinguish the first incarnation, the second, and later ones: see Model.mapReplaced.
		x.n(min(n.incarnations, 3))
		x.is(n.filters != nil, n.wallStep != 0, w.filtered)
		x.n(n.layout<<4 | n.Map.layout)
		x.n(len(n.opt.DigestKey))
		if w.tick > 0 { // otherwise each later event has a higher time
			x.time(n.last[0])
			x.time(n.last[1])
			x.time(n.clock())
		}
		if n.Daemon != nil {
			x.daemon(n.Daemon)
		}
	}
}

// model adds what the final check of the only key depends on.
func (x *exploreState) model(m *Model) {
	k := &m.keys[0]
	if k.home < 0 {
		return // the model checks nothing for the key
	}
	x.is(k.written, k.gone, k.unreported, k.contested, k.raceOpen, k.racedBefore, k.mayRevert, k.evicted, k.rewritten)
	x.n(k.deletedBy)
	x.is(m.closeToLast(k), m.closeToEviction(k))
	x.n(int(k.missing))
	x.rank(kindValue, uint64(k.deleted))
	x.rank(kindValue, uint64(k.at))
	x.rank(kindValue, uint64(k.refilled))
	x.value(k.last)
}

// kernelMap adds the entry of a map, and whether it is the load balancer's present map. m may be nil.
func (x *exploreState) kernelMap(m, current *Map) {
	if m == nil {
		x.n(0)
		return
	}
	e := &m.entries[0]
	x.is(true, m == current, e.live, e.evicted)
	if e.live {
		x.value(e.value)
		x.is(e.value[timerByte] != 0)
	}
}

// reads adds values that were read and not entered yet.
func (x *exploreState) reads(d *Daemon, all []mapRead) {
	x.n(len(all))
	for i := range all {
		x.is(all[i].found)
		if all[i].found {
			x.value(all[i].value)
		}
		x.stamp(d, all[i].at)
	}
}

// stamp adds a time that the table of a daemon may later compare, also with versions.
func (x *exploreState) stamp(d *Daemon, at int64) {
	x.time(at)
	if d.tab != nil {
		x.version(d.internals().VersionAt(d.tab, at))
	}
}

// ahead adds a version that a table may compare with later versions.
func (x *exploreState) ahead(d *Daemon, v table.Version) {
	x.version(v)
	if now := d.internals().VersionAt(d.tab, d.n.clock()); now < v {
		x.version(now)
	}
}

// daemon adds a daemon with its table, its work in progress and its streams.
func (x *exploreState) daemon(d *Daemon) {
	x.rank(kindIncarnation, d.self.Incarnation)
	x.kernelMap(d.m, d.n.Map)
	x.n(int(d.state))
	x.n(int(d.how))
	x.n(d.place)
	x.n(d.layout)
	x.is(d.converted, d.wasOffered, d.m != nil && d.loaded == d.m.ID, d.inStateFile, d.initialSyncDone, d.restores, d.serving, d.scanning, d.membersSetAt != 0)
	x.reads(d, d.read)
	x.reads(d, d.scanned)
	x.n(d.scanPlace)
	for cpu := range d.queue {
		x.n(len(d.queue[cpu]))
		for i := range d.queue[cpu] {
			e := &d.queue[cpu][i]
			// An event of a former map is ignored, whichever map that was.
			x.is(d.m != nil && e.mapID == d.m.ID)
			x.n(int(e.op)<<8 | int(e.ctx))
			if e.op == table.OpUpdate {
				x.value(e.value)
			}
			x.stamp(d, e.time)
		}
	}
	x.members(d)
	x.is(d.wallStep != d.n.wallStep, d.awaited != 0, d.begun)
	if d.tab != nil {
		pending := 0
		if d.initialSyncDone {
			d.tab.View(func(tx *table.Tx) { pending = tx.PendingWrites(d.syncBarrier) })
		}
		x.n(pending)
		x.addTable(d)
		x.syncer(d)
		// Without values to enter, an open reading has no influence.
		if len(d.reads) > 0 {
			x.addReading(d, &d.reading)
		}
		if len(d.read)+len(d.scanned) > 0 {
			x.addReading(d, &d.scanReading)
		}
	}
	for _, l := range d.Inbound {
		x.inbound(l)
	}
}

// members adds the state of a daemon about the other nodes.
func (x *exploreState) members(d *Daemon) {
	x.is(d.gone...)
	x.is(d.everLive...)
	x.is(d.verified...)
	x.view(d.view)
	x.n(int(d.ownersChecked))
}

// view adds the live nodes of a view. Departures are added relative to other views: see inbound.
func (x *exploreState) view(v *view) {
	if v == nil {
		x.n(-1)
		return
	}
	for _, inc := range v.live {
		x.rank(kindIncarnation, inc)
	}
}

// syncer adds the writes and rereads in progress.
func (x *exploreState) syncer(d *Daemon) {
	x.n(int(d.phase))
	x.is(d.writer != nil)
	if d.writer != nil {
		x.position(d.writer.Position())
	}
	x.n(len(d.batch))
	for i := range d.batch {
		w := &d.batch[i]
		x.is(w.dead, w.done, w.raced, w.err != nil)
		if !w.dead {
			x.value(w.value)
		}
		x.rank(kindValue, uint64(w.at))
		x.n(int(w.ref))
		x.version(w.version)
	}
	x.n(len(d.refused))
	x.n(len(d.keys))
	x.reads(d, d.reads)
}

// inbound adds the receiving end of a stream. Positions belong to the table of either end, so it changes
// x.table in between.
func (x *exploreState) inbound(l *InboundStream) {
	x.is(l != nil)
	if l == nil {
		return
	}
	x.is(l.st != nil, l.received, l.sweep, l.synced, l.complete, l.repeatFullSync, l.repeatAt != 0, l.unheld, l.retry > l.to.n.world.Now, l.repair != nil)
	x.n(int(l.state))
	// Only the distance of serials and indexes matters.
	x.n(l.last - l.index)
	x.is(l.wanted, l.departures == l.to.view.departures, l.sent == l.serial, l.confirmed == l.serial, l.dropped, l.again)
	x.rank(kindIncarnation, l.inc)
	mine := x.table
	if l.state == inboundAwaited {
		x.position(l.subscribePos)
		x.position(l.subscribeMerged)
	}
	if l.sweep {
		x.position(l.before)
		x.position(l.merged)
		x.is(l.coverage.Has(l.to.key(0)))
	}
	x.table = l.peer
	x.n(l.epoch)
	x.position(l.position)
	x.position(l.from)
	x.position(l.completeTo)
	if l.st != nil {
		x.stream(l)
	}
	x.table = mine
}

// stream adds the stream of an inbound stream.
func (x *exploreState) stream(l *InboundStream) {
	st, index := l.st, l.index
	x.is(st.broken, st.receiverLeft)
	x.n(st.from.epoch)
	x.n(len(st.requests))
	for i := range st.requests {
		r := &st.requests[i]
		x.is(r.subscribe, r.again, r.sendAll, r.resume, r.unsubscribe, r.index == index, r.orphaned)
		x.n(l.serial - r.serial)
		x.position(r.position)
	}
	x.n(len(st.messages))
	for i := range st.messages {
		m := &st.messages[i]
		x.n(int(m.kind))
		x.is(m.index == index, m.reset, m.end, m.open)
		x.n(max(l.serial-m.serial, 8))
		x.position(m.previous)
		x.position(m.position)
		x.position(m.passed)
		for j := range m.deltas {
			d := &m.deltas[j]
			x.is(d.dead)
			if !d.dead {
				x.value(d.value)
			}
			x.ahead(st.to, d.version)
			x.n(int(d.owner.Node[0]))
			x.rank(kindIncarnation, d.owner.Incarnation)
		}
	}
	f := st.outbound
	x.is(f != nil, st.last == index)
	if f == nil {
		return
	}
	x.is(f.orphaned, f.again, f.serial == f.answered, f.coverage.orphaned, f.coverage.view == st.from.view, f.requestedCursor != nil)
	x.n(l.serial - f.serial)
	x.view(f.coverage.view)
	if f.coverage.view != nil {
		x.n(st.from.view.departures - f.coverage.view.departures)
	}
	if f.requestedCursor != nil {
		x.position(f.requestedCursor.Position())
		x.position(f.requestedUntil)
	}
	x.is(f.sendAll, f.resume, f.pendingSent, f.open, f.ended, f.caughtUp, f.cursor != nil, f.index == index)
	x.position(f.origin)
	x.position(f.goal)
	x.position(f.sent)
	if f.cursor != nil {
		x.position(f.cursor.Position())
	}
}
