package table

import (
	"encoding/binary"
	"hash/maphash"
	"slices"
)

// exploreState returns the part of a world that distinguishes it from others: all that has any influence on
// what comes next. Times, versions, positions, incarnations and values are replaced by their
// places among all of their kind, so that two courses that lead to the same lead to one state.
//
// It may leave out only parts without influence. A part kept without need costs only states.
type exploreState struct {
	raw   []byte
	marks []mark
	kinds [numKinds][]uint64
	table int // whose times and positions are added
	cpus  int
}

// mark is a number that stands in raw as its place among those of its kind.
type mark struct {
	kind int
	v    uint64
}

// The kinds of numbers. Versions are those of all nodes; of times and positions each table has
// its own, as it compares them with no other.
const (
	kindVersion = iota
	kindIncarnation
	kindValue
	kindTime
	kindPosition = kindTime + exploreNodes
	numKinds     = kindPosition + exploreNodes

	exploreNodes = 4
)

func (x *exploreState) n(v int) { x.raw = binary.AppendVarint(x.raw, int64(v)) }

func (x *exploreState) is(all ...bool) {
	for _, b := range all {
		if b {
			x.raw = append(x.raw, 1)
		} else {
			x.raw = append(x.raw, 0)
		}
	}
}

func (x *exploreState) place(kind int, v uint64) {
	x.marks = append(x.marks, mark{kind, v})
	x.kinds[kind] = append(x.kinds[kind], v)
}

func (x *exploreState) version(v Version) { x.place(kindVersion, uint64(v)) }

func (x *exploreState) time(v int64) { x.place(kindTime+x.table, uint64(v)) }

func (x *exploreState) value(v entryValue) { x.place(kindValue, uint64(v.number())) }

func (x *exploreState) position(p uint64) { x.place(kindPosition+x.table, p) }

// sum returns a hash of all that was added. Places keep the difference of neighbours up to
// a few nanoseconds or steps, as rules look at no more.
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
	for _, m := range x.marks {
		x.n(places[m.kind][m.v])
	}
	var h maphash.Hash
	h.SetSeed(seed)
	_, _ = h.Write(x.raw)
	x.raw, x.marks = x.raw[:0], x.marks[:0]
	return h.Sum64()
}

// apart is how far apart two neighbours stand: 1 ns, more, or as many steps as matter, where
// steps are about as long as what rules compare with.
func apart(d uint64, step int64) int {
	switch {
	case d == 1:
		return 1
	case step > sameMoment && step <= simDisorder:
		return 2 + int(min(d/uint64(step), uint64(simDisorder/step)+1))
	default:
		return 2
	}
}

// add adds a whole world.
func (x *exploreState) add(w *exploreWorld) {
	x.cpus = w.cpus
	x.model(w.model)
	for i, n := range w.nodes {
		x.table = i
		x.kernelMap(n.lb, n.lb)
		x.is(n.noted == n.lb.id, n.d != nil)
		x.n(min(n.lives, 3))
		if w.tick > 0 { // else what comes next is later than all that was
			x.time(n.last[0])
			x.time(n.last[1])
			x.time(n.clock())
		}
		if n.d != nil {
			x.daemon(n.d)
		}
	}
}

func (x *exploreState) model(m *simModel) {
	k := &m.keys[0]
	if k.home < 0 {
		return // it asks for nothing
	}
	x.is(k.written, k.gone, k.unseen, k.spoilt, k.unsure, k.muddled, k.loose, k.evicted)
	x.is(m.close(k))
	x.n(int(k.missing))
	x.place(kindValue, uint64(k.deleted))
	x.place(kindValue, uint64(k.at))
	x.value(k.last)
}

func (x *exploreState) kernelMap(m, current *simMap) {
	if m == nil {
		x.n(0)
		return
	}
	e := &m.entries[0]
	x.is(true, m == current, e.live, e.evicted)
	if e.live {
		x.value(e.value)
	}
}

func (x *exploreState) reads(d *simDaemon, all []simRead) {
	x.n(len(all))
	for i := range all {
		x.is(all[i].found)
		if all[i].found {
			x.value(all[i].value)
		}
		x.stamp(d, all[i].at)
	}
}

// stamp adds a time that a daemon's table may come to compare, with versions too.
func (x *exploreState) stamp(d *simDaemon, at int64) {
	x.time(at)
	if d.tab != nil {
		x.version(d.tab.versionAt(at))
	}
}

// ahead adds a version that a table may come to compare with those of what comes next.
func (x *exploreState) ahead(d *simDaemon, v Version) {
	x.version(v)
	if now := d.tab.versionAt(d.n.clock()); now < v {
		x.version(now)
	}
}

func (x *exploreState) daemon(d *simDaemon) {
	x.place(kindIncarnation, d.self.Incarnation)
	x.kernelMap(d.m, d.n.lb)
	x.n(int(d.state))
	x.n(int(d.how))
	x.n(d.place)
	x.is(d.known, d.m != nil && d.loaded == d.m.id, d.noted, d.heard, d.serving, d.scanning, d.toldAt != 0)
	x.reads(d, d.read)
	x.reads(d, d.scanned)
	x.n(d.scanPlace)
	for cpu := range d.queue {
		x.n(len(d.queue[cpu]))
		for i := range d.queue[cpu] {
			e := &d.queue[cpu][i]
			x.is(d.m != nil && e.mapID == d.m.id)
			x.n(int(e.op)<<8 | int(e.ctx))
			if e.op == OpUpdate {
				x.value(e.value)
			}
			x.stamp(d, e.time)
		}
	}
	x.members(d)
	if d.tab != nil {
		x.position(d.heardAt)
		x.records(d)
		x.syncer(d)
		if len(d.reads) > 0 {
			x.reading(d.tab, &d.reading)
		}
		if len(d.read)+len(d.scanned) > 0 {
			x.reading(d.tab, &d.scanReading)
		}
	}
	for _, l := range d.links {
		x.link(l)
	}
}

func (x *exploreState) reading(t *Table, r *Reading) {
	x.is(r.absent != [8]uint64{})
	for s := firstSlot; s < t.allocated; s++ {
		x.is(r.outdates(s))
	}
}

func (x *exploreState) members(d *simDaemon) {
	x.is(d.gone...)
	x.is(d.met...)
	x.is(d.proven...)
	x.view(d.view)
	x.n(int(d.looked))
}

func (x *exploreState) view(v *simView) {
	if v == nil {
		x.n(-1)
		return
	}
	for _, inc := range v.live {
		x.place(kindIncarnation, inc)
	}
}

func (x *exploreState) syncer(d *simDaemon) {
	x.n(int(d.phase))
	x.is(d.writer != nil)
	if d.writer != nil {
		x.position(d.writer.pos)
	}
	x.n(len(d.batch))
	for i := range d.batch {
		w := &d.batch[i]
		x.is(w.dead, w.done, w.raced, w.err != nil)
		if !w.dead {
			x.value(w.value)
		}
		x.place(kindValue, uint64(w.at))
		x.n(int(w.ref))
		x.version(w.version)
	}
	x.n(len(d.refused))
	x.n(len(d.keys))
	x.reads(d, d.reads)
}

func (x *exploreState) link(l *simLink) {
	x.is(l != nil)
	if l == nil {
		return
	}
	x.is(l.st != nil, l.received, l.sweep, l.synced, l.rewalk, l.retry > l.to.n.sim.now, l.job != nil)
	x.n(int(l.state))
	x.n(l.last - l.index)
	x.is(l.wanted, l.departures == l.to.view.departures, l.sent == l.serial, l.confirmed == l.serial)
	x.place(kindIncarnation, l.inc)
	mine := x.table
	if l.state == simAwaited {
		x.position(l.asked)
	}
	if l.sweep {
		x.position(l.before)
	}
	x.table = l.peer
	x.position(l.position)
	x.position(l.from)
	x.position(l.passed)
	if l.st != nil {
		x.stream(l)
	}
	x.table = mine
}

// stream adds the stream of a link.
func (x *exploreState) stream(l *simLink) {
	st, index := l.st, l.index
	x.is(st.broken, st.left)
	x.n(len(st.up))
	for i := range st.up {
		r := &st.up[i]
		x.is(r.subscribe, r.tellAll, r.resume, r.unsubscribe, r.index == index, r.orphaned)
		x.n(l.serial - r.serial)
		x.position(r.position)
	}
	x.n(len(st.down))
	for i := range st.down {
		m := &st.down[i]
		x.n(int(m.kind))
		x.is(m.index == index, m.reset, m.end)
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
			x.place(kindIncarnation, d.owner.Incarnation)
		}
	}
	f := st.feed
	x.is(f != nil, st.last == index)
	if f == nil {
		return
	}
	x.is(f.orphaned, f.serial == f.answered, f.cover.orphaned, f.cover.view == st.from.view, f.walk != nil)
	x.n(l.serial - f.serial)
	x.view(f.cover.view)
	if f.cover.view != nil {
		x.n(st.from.view.departures - f.cover.view.departures)
	}
	if f.walk != nil {
		x.position(f.walk.pos)
		x.position(f.until)
	}
	x.is(f.tellAll, f.resume, f.told, f.open, f.ended, f.caught, f.cursor != nil, f.index == index)
	x.position(f.origin)
	x.position(f.goal)
	x.position(f.sent)
	if f.cursor != nil {
		x.position(f.cursor.pos)
	}
}
