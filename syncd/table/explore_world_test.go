package table

import (
	"fmt"
	"slices"
	"time"
)

// exploreConf is one small cluster whose every course TestExplore follows.
type exploreConf struct {
	name  string
	nodes int
	home  int   // the node whose load balancer alone writes the key; -1: all do
	step  int64 // what time passes with each step, in ns
	tick  int64 // of the clocks, if that is more than a nanosecond
	ahead int64 // what each node's clock is ahead of the one before
	scans bool  // hooks miss changes, and scans find them
	crash bool  // daemons end and start again
	lost  bool  // hosts end, and lose their maps
	evict bool  // maps throw the key out
	keys  bool  // hooks tell which key was updated, and not to what
	fresh bool  // the key is not known at the beginning
	dead  bool  // at the beginning the key is deleted, and all tables hold a compact tombstone
	start bool  // at the beginning the first daemon has just started again
	// coarse: a step is more, so that a course gets further: all that the writer has to do, all
	// that is on a stream, and a change with its event, or that alone.
	coarse bool
	only   []exploreAction // kinds; nil: all
	less   int             // steps fewer than in others: it has more states
	bare   int             // the node without the map, if not 0: never the first
}

// exploreWorld is a cluster with one key, in the state that a course of actions leads to. It can
// not be copied: another course begins with another world.
type exploreWorld struct {
	*sim
	conf *exploreConf
	cpus int // whose events may come in another order
}

// exploreAction is one thing that happens: a kind, and up to two nodes.
type exploreAction uint16

const (
	actWrite   exploreAction = iota << 4 // an event on CPU 0
	actWrite1                            // and on CPU 1
	actDelete                            // by the data plane
	actDelete1                           // the same on CPU 1
	actCollect                           // a delete by bpf(2), as that of a collector
	actHidden                            // a write that no hook sees: in place, or its event is lost
	actHidden1                           // a delete that no hook sees
	actEvict                             // the map throws the key out
	actEvent                             // an event of CPU 0 reaches the table
	actEvent1                            // or of CPU 1
	actWork                              // the next part of what the writer does
	actScan                              // the next part of a scan: to read, or to enter
	actLife                              // the next part of a daemon's start, or a view of who is live
	actCrash                             // a daemon ends
	actLostMap                           // a crash of the whole host
	actSend                              // a stream gets what there is for it
	actTake                              // the receiver takes the next batch
	actChange                            // a write and its event, at once
	actErase                             // a delete and its event, at once
	actCompact                           // the hand passes what it can
)

var exploreNames = [...]string{
	"writes", "writes on 1", "deletes", "deletes on 1", "collects", "writes unseen", "deletes unseen", "evicts",
	"delivers", "delivers on 1", "works", "scans", "goes on", "crashes", "loses its map", "sends", "takes", "changes", "erases", "compacts",
}

func (a exploreAction) kind() exploreAction { return a &^ 15 }

// nodes returns the acting node, and the one at the other end of a stream.
func (a exploreAction) nodes() (n, peer int) { return int(a >> 2 & 3), int(a & 3) }

func (a exploreAction) String() string {
	n, peer := a.nodes()
	text := string(rune('a'+n)) + " " + exploreNames[a>>4]
	switch a.kind() {
	case actSend:
		text += " to " + string(rune('a'+peer))
	case actTake:
		text += " from " + string(rune('a'+peer))
	}
	return text
}

// newExploreWorld brings a cluster up, until it is at rest.
func newExploreWorld(tb interface{ Fatal(...any) }, conf *exploreConf, tables *simTables) *exploreWorld {
	w := &exploreWorld{sim: newSim(tb, simNames(conf.nodes)...), conf: conf, cpus: 1}
	w.tables, w.scans, w.tick, w.keysOnly = tables, conf.scans, conf.tick, conf.keys
	w.model = &simModel{sim: w.sim, keys: []modelKey{{home: conf.home}}, skewed: conf.ahead != 0}
	w.key(pad("k", simKey))
	if conf.step < simDisorder {
		w.cpus = 2
	}
	for i := range w.nodes {
		i = (i + conf.bare) % conf.nodes // that one started first
		n := w.nodes[i]
		n.opt = Options{TombstoneTTL: 1000 * time.Hour}
		n.offset = int64(i) * conf.ahead
		n.hidden = conf.bare > 0 && i == conf.bare
		n.start()
		w.now += 2
	}
	w.rest()
	if !conf.fresh {
		n := w.nodes[0]
		n.put(0, w.model.value(0), 0, ContextPacket, true, 0)
		w.rest()
	}
	if conf.dead {
		w.nodes[0].remove(0, 0, ContextPacket, true, 0)
		w.rest()
		for _, n := range w.nodes {
			if n.d.compact(); !n.hidden && n.d.tab.log.n != 1 {
				w.fail(fmt.Errorf("%s: the tombstone is not compact", n.name))
			}
		}
	}
	w.now = simStart + int64(time.Minute)
	if conf.start {
		n := w.nodes[0]
		n.stop()
		w.model.stopped(n)
		w.life(n)
		for _, n := range w.nodes[1:] {
			n.d.seeAll()
		}
	}
	return w
}

// rest lets all be done that there is to do at the beginning.
func (w *exploreWorld) rest() {
	for range 3 {
		w.now += 2 * sameMoment
		for _, n := range w.nodes {
			n.d.live()
		}
		w.carry()
	}
}

// can returns what may happen next.
func (w *exploreWorld) can(to []exploreAction) []exploreAction {
	for i, n := range w.nodes {
		me := exploreAction(i << 2)
		e := &n.lb.entries[0]
		writes := w.conf.home < 0 || w.conf.home == i
		add := func(ok bool, kinds ...exploreAction) {
			for _, k := range kinds {
				if ok {
					to = append(to, k|me)
				}
			}
		}
		hooked := n.d != nil && n.d.m == n.lb
		second := hooked && w.cpus > 1 && w.firstUsed(n.d)
		quiet := hooked && w.conf.coarse && len(n.d.queue[0])+len(n.d.queue[1]) == 0
		add(writes && !n.hidden, actWrite)
		add(writes && quiet, actChange)
		add(writes && quiet && e.live, actErase)
		add(writes && second, actWrite1)
		add(writes && e.live, actDelete)
		add(writes && second && e.live, actDelete1)
		add(e.live && hooked, actCollect)
		add(w.conf.scans && hooked && writes, actHidden)
		add(w.conf.scans && hooked && e.live, actHidden1)
		add(w.conf.evict && e.live, actEvict)
		add(n.d == nil || w.unsettled(n.d), actLife)
		add(w.conf.crash && n.d != nil, actCrash)
		add(w.conf.lost && n.d != nil, actLostMap)
		if n.d != nil {
			to = w.canDaemon(to, n.d, me)
		}
	}
	if only := w.conf.only; only != nil {
		to = slices.DeleteFunc(to, func(a exploreAction) bool { return !slices.Contains(only, a.kind()) })
	}
	return to
}

// firstUsed reports whether CPU 0 is of any meaning yet to a daemon. If not, CPU 1 is the same.
func (w *exploreWorld) firstUsed(d *simDaemon) bool {
	if len(d.queue[0]) > 0 || d.tab == nil {
		return true
	}
	_, s := d.tab.find(w.keys[0][:])
	return s != 0 && d.tab.meta(s).cpu == 0
}

func (w *exploreWorld) canDaemon(to []exploreAction, d *simDaemon, me exploreAction) []exploreAction {
	if len(d.queue[0]) > 0 && d.m != nil {
		to = append(to, actEvent|me)
	}
	if len(d.queue[1]) > 0 && d.m != nil {
		to = append(to, actEvent1|me)
	}
	if d.state >= simSyncing && (d.phase != simFill || !d.idle()) {
		to = append(to, actWork|me)
	}
	if d.state >= simSyncing && w.scans {
		to = append(to, actScan|me)
	}
	if d.tab != nil && d.compacts() {
		to = append(to, actCompact|me)
	}
	for j := range w.nodes {
		if j == d.n.id || !d.known {
			continue
		}
		to = append(to, actSend|me|exploreAction(j))
		if l := d.links[j]; !w.conf.coarse && l != nil && l.st != nil && (len(l.st.down) > 0 || l.st.broken) {
			to = append(to, actTake|me|exploreAction(j))
		}
	}
	return to
}

// do lets one thing happen.
func (w *exploreWorld) do(a exploreAction) {
	w.now += w.conf.step
	i, j := a.nodes()
	n := w.nodes[i]
	switch k := a.kind(); k {
	case actWrite, actWrite1, actHidden:
		cpu := uint16(k >> 4 & 1)
		n.put(0, w.model.value(0), cpu, ContextPacket, k != actHidden, w.jitter(cpu))
	case actDelete, actDelete1:
		cpu := uint16(k >> 4 & 1)
		n.remove(0, cpu, ContextPacket, true, w.jitter(cpu))
	case actCollect, actHidden1:
		n.remove(0, uint16(w.cpus-1), ContextSyscall, k == actCollect, w.jitter(uint16(w.cpus-1)))
	case actEvict:
		n.evict(-1, 0, ContextPacket, true, w.jitter(0))
	case actEvent, actEvent1:
		n.d.deliver(int(k >> 4 & 1))
	case actChange:
		n.put(0, w.model.value(0), 0, ContextPacket, true, w.jitter(0))
		n.d.deliver(0)
	case actErase:
		n.remove(0, 0, ContextPacket, true, w.jitter(0))
		n.d.deliver(0)
	case actWork:
		w.work(n.d)
		for w.conf.coarse && n.d.phase != simFill {
			w.work(n.d)
		}
	case actScan:
		if n.d.scanning {
			n.d.scanOn()
		} else {
			n.d.scanSome(1)
		}
	case actLife:
		w.life(n)
	case actCompact:
		n.d.compact()
	case actCrash, actLostMap:
		n.stop()
		w.model.stopped(n)
		if k == actLostMap {
			n.lb = w.newMap()
			w.model.lostMap(n)
		}
	case actSend:
		w.send(n.d, j)
		if p := w.nodes[j].d; w.conf.coarse && p != nil && p.links[i] != nil {
			for p.links[i].take() {
			}
		}
	case actTake:
		l := n.d.links[j]
		l.take()
		l.takeHead()
	}
}

// jitter is what the times in events of a CPU are off by, where all is one moment.
func (w *exploreWorld) jitter(cpu uint16) int64 {
	if w.conf.step >= sameMoment || w.tick > 0 {
		return 0
	}
	return (1 - 2*int64(cpu)) * sameMoment * 2 / 5
}

// work does the next part of the writer's pass in which anything happens: to take records,
// to write them, to report them; to take and read what is to be read again, to enter that.
func (w *exploreWorld) work(d *simDaemon) {
	for {
		switch d.work(1 << 20); {
		case d.phase == simFill, d.phase == simWriting && len(d.batch) > 0, d.phase == simReport && len(d.batch) > 0,
			d.phase == simDrop, d.phase == simAnswer:
			return
		}
	}
}

// unsettled reports whether there is a next part of a daemon's start, or something to be seen.
func (w *exploreWorld) unsettled(d *simDaemon) bool {
	return d.state == simLoading || (d.state == simSyncing && (d.alone() || d.synced())) || w.unseen(d)
}

// life is the next part of a daemon's start: to attach the map, to read it, to enter that, to
// see who is live, to claim.
func (w *exploreWorld) life(n *simNode) {
	switch d := n.d; {
	case d == nil:
		n.start()
		n.d.seeAll()
		n.d.follow()
	case d.state == simLoading:
		d.load(1 << 20)
	case w.unseen(d):
		d.seeAll()
	default:
		d.claim()
		d.note()
	}
}

// unseen reports whether a daemon does not know yet who is live.
func (w *exploreWorld) unseen(d *simDaemon) bool {
	for i, n := range w.nodes {
		inc := uint64(0)
		if n.d != nil {
			inc = n.d.self.Incarnation
		}
		if d.view.live[i] != inc {
			return true
		}
	}
	return d.toldAt == 0
}

// send fills the stream from one daemon to a peer with what there is, up to a batch.
func (w *exploreWorld) send(d *simDaemon, to int) {
	p := w.nodes[to].d
	if p == nil || p.links[d.n.id] == nil {
		return
	}
	l := p.links[d.n.id]
	l.request()
	for st := l.st; st != nil && st == l.st && !st.broken && st.serve(1<<10); {
		if n := len(st.down); n > 0 && st.down[n-1].kind == simBatch {
			return
		}
		l.takeHead()
	}
}

// takeHead takes what is said of the stream itself, up to the next batch.
func (l *simLink) takeHead() {
	for l.st != nil && len(l.st.down) > 0 && l.st.down[0].kind != simBatch && l.take() {
	}
}

// judge lets all come to rest and returns what is wrong then.
func (w *exploreWorld) judge() error {
	w.heal()
	if w.conf.bare > 0 {
		w.nodes[w.conf.bare].hidden = true
	}
	if err := w.settle(); err != nil {
		return err
	}
	for _, n := range w.up() {
		checkInvariants(w, n.d.tab)
	}
	if up := w.up(); len(up) > 0 {
		c := up[0].d.content(0)
		return w.model.check(0, &c)
	}
	return nil
}

func (w *exploreWorld) Helper() {}

func (w *exploreWorld) Fatalf(format string, args ...any) { w.fail(fmt.Errorf(format, args...)) }
