package table

import (
	"errors"
	"fmt"
	"time"
)

// simDaemon is one life of a daemon: a table, and what is done around it.
type simDaemon struct {
	n    *simNode
	self Owner
	tab  *Table // nil before there was a map

	// The map under the table: syncd/daemon/replica.go.
	m       *simMap // nil: none is attached
	state   simState
	how     simLoad
	since   int64  // when it was attached
	known   bool   // the table was offered to peers
	loaded  int    // the map that was read last, if wholly
	noted   bool   // the state file names the map
	heard   bool   // peers have told all, up to heardAt
	heardAt uint64 // position
	place   int    // that the load has got to
	read    []simRead
	queue   [simCPUs][]simEvent

	simSyncer
	scanning  bool
	scanPlace int
	// scanExpired is how many tombstones had been forgotten when the scan began.
	scanExpired uint64
	scanned     []simRead
	scanReading Reading

	simMembers
	simLinks
}

// simState is how far a map has come at a node.
type simState uint8

const (
	simWaiting simState = iota
	simLoading
	simSyncing
	simReplicating
)

// simLoad is what the content of a map means when it comes.
type simLoad uint8

const (
	loadFirst  simLoad = iota // what an earlier incarnation may have left
	loadRefill                // a new map: the load balancer's writes since
	loadAgain                 // the same one: what a scan finds
)

// simRead is what was read of a key.
type simRead struct {
	key   int
	found bool
	value entryValue
	at    int64
}

const simSyncTimeout = int64(30 * time.Second)

// start brings a daemon up: what the node's map holds is still to be read.
func (n *simNode) start() {
	d := &simDaemon{n: n, self: Owner{n.name, uint64(n.clock())}}
	d.initMembers()
	n.d, n.frozen, n.lives = d, false, n.lives+1
	n.last = [simCPUs]int64{} // by the clock of another life
	n.sim.moves++
	n.sim.notef("%s starts as %d", n.name, d.self.Incarnation)
}

// stop ends the daemon without a word. The kernel map stays.
func (n *simNode) stop() {
	d := n.d
	for len(d.sessions) > 0 {
		d.sessions[0].end()
	}
	for _, l := range d.links {
		if l != nil {
			l.cut()
		}
	}
	n.d = nil
	n.sim.moves++
	n.sim.notef("%s stops", n.name)
}

func (s *sim) notef(format string, args ...any) {
	if s.notes != nil {
		s.notes(format, args...)
	}
}

// attach puts the load balancer's map under the daemon.
func (d *simDaemon) attach() {
	n := d.n
	same := n.noted == n.lb.id
	if !d.known {
		o := n.opt
		o.LRU, o.MaxEntries = n.lru, n.room
		o.Self, o.KeySize, o.ValueSize, o.Seed, o.SameMap = d.self, simKey, simValue, 1, same
		d.tab = n.sim.tables.get(n.sim.tb, o)
	}
	d.m, d.state, d.since, d.noted, d.heard = n.lb, simLoading, n.sim.now, same, false
	d.place, d.read = 0, d.read[:0]
	switch {
	case !d.known:
		d.how = loadFirst
		d.tab.Update((*Tx).BeginLoad)
	case d.loaded == d.m.id:
		d.how = loadAgain
		d.tab.Update((*Tx).BeginScan)
	default:
		d.how = loadRefill
		d.tab.Update((*Tx).Refill)
	}
	if n.sim.model != nil && (d.how == loadRefill || (d.how == loadFirst && !same)) {
		n.sim.model.another(n)
	}
	if d.how != loadAgain {
		d.loaded = 0
	}
	n.sim.moves++
	n.sim.notef("%s attaches map %d", n.name, d.m.id)
}

// detach takes the map away from under the table.
func (d *simDaemon) detach() {
	for d.state >= simSyncing && d.phase != simFill {
		d.work(1 << 20)
	}
	d.closeSyncer()
	for cpu := range d.queue {
		for i := range d.queue[cpu] {
			if s := d.n.sim; s.model != nil {
				s.model.dropped(d.n, d.queue[cpu][i].key)
			}
		}
		d.queue[cpu] = nil // nobody wants them while the map is not watched
	}
	d.m, d.state, d.scanning = nil, simWaiting, false
	d.n.sim.moves++
	d.n.sim.notef("%s detaches its map", d.n.name)
}

// follow attaches and detaches as the load balancer's map comes and goes.
func (d *simDaemon) follow() {
	there := d.n.lb
	if d.n.hidden {
		there = nil
	}
	switch {
	case d.m != nil && d.m != there:
		d.detach()
	case d.m == nil && there != nil:
		d.attach()
	case there == nil:
		d.serving = true // it was looked for
	}
}

// load reads the next entries of the map, or enters those read.
func (d *simDaemon) load(limit int) {
	if len(d.read) == 0 && d.place < len(d.m.entries) {
		d.tab.View(func(tx *Tx) { tx.BeginReading(&d.scanReading) })
		d.read, d.place = d.m.walk(d.read, d.place, limit, d.n.readClock())
		return
	}
	d.tab.Update(func(tx *Tx) {
		for i := range d.read {
			d.enter(tx, &d.read[i])
		}
		more := d.place == len(d.m.entries) && d.how == loadAgain
		for more {
			more = tx.EndScan(3)
		}
	})
	d.read = d.read[:0]
	if d.place == len(d.m.entries) {
		d.replicate()
	}
}

func (d *simDaemon) enter(tx *Tx, r *simRead) {
	c := d.change(r)
	d.learns(tx, r)
	switch d.how {
	case loadFirst:
		tx.Load(c.Key, c.Value)
	case loadRefill:
		c.Context = ContextProcess
		tx.Local(&c)
	case loadAgain:
		c.Read = &d.scanReading
		tx.Scanned(&c)
	}
}

// change makes of what was read what the table is told.
func (d *simDaemon) change(r *simRead) Change {
	c := Change{Key: d.n.sim.keys[r.key][:], Time: r.at, Op: OpDelete, Context: ContextReread}
	if r.found {
		c.Op, c.Value = OpUpdate, r.value[:]
	}
	return c
}

// learns tells the model what a daemon read of its map.
func (d *simDaemon) learns(tx *Tx, r *simRead) {
	if m := d.n.sim.model; m != nil {
		m.read(d.n, tx, r)
	}
}

// replicate offers the table to peers.
func (d *simDaemon) replicate() {
	if d.how == loadFirst {
		d.tab.Update((*Tx).EndLoad)
	}
	if !d.known {
		d.known = true
		d.tellGone()
	}
	d.loaded, d.serving, d.state = d.m.id, true, simSyncing
	d.openSyncer()
	d.n.sim.moves++
}

// deliver hands the oldest event of one CPU to the table, if it is that one's turn: a buffer
// keeps the order of all but what came at about the same moment.
func (d *simDaemon) deliver(cpu int) {
	q := d.queue[cpu]
	if len(q) == 0 {
		return
	}
	for _, o := range d.queue {
		if len(o) > 0 && q[0].time > o[0].time+simDisorder {
			return
		}
	}
	e := q[0]
	d.queue[cpu] = q[1:]
	d.event(&e)
}

const simDisorder = 5 * sameMoment

func (d *simDaemon) event(e *simEvent) {
	d.n.sim.moves++
	if d.m == nil || e.mapID != d.m.id {
		return
	}
	c := Change{Key: d.n.sim.keys[e.key][:], Time: e.time, CPU: e.cpu, Op: e.op, Context: e.ctx}
	if e.op == OpUpdate {
		c.Value = e.value[:]
	}
	if d.n.sim.keysOnly && e.op == OpUpdate {
		d.tab.Update(func(tx *Tx) { tx.Reread(c.Key) })
		return
	}
	before := d.content(e.key)
	o := d.local(&c)
	if e.op != OpUpdate && before.live() {
		d.judgeDelete(e, &before, o)
	}
}

func (d *simDaemon) content(key int) (c simContent) {
	d.tab.View(func(tx *Tx) { c = d.n.content(tx, key) })
	return c
}

// judgeDelete demands that a collector and an eviction delete only what this node owns, or one
// that is gone, and that a collector does that.
func (d *simDaemon) judgeDelete(e *simEvent, before *simContent, o Outcome) {
	s := d.n.sim
	owner := s.node(before.owner.Node)
	allowed := before.version != 0 && (owner == d.n.id || d.gone[owner])
	after := d.content(e.key)
	switch told := after.dead && after.version != 0; {
	case e.op == OpDelete && e.ctx != ContextSyscall:
		return // the data plane may
	case told && !allowed, e.op == OpDelete && before.version != 0 && allowed == (o == Restored):
		s.fail(fmt.Errorf("%s: the %s of %s, %v, by %s is %s", d.n.name, e.op, s.name(e.key), before, e.ctx, o))
	}
}

func (d *simDaemon) local(c *Change) (o Outcome) {
	d.tab.Update(func(tx *Tx) { tx.Now(d.n.clock()); o = tx.Local(c) })
	if o == Accepted || o == Restored {
		d.n.sim.moves++
	}
	if d.n.sim.trace != nil {
		d.n.sim.trace("%s %s %s %s by %s: %s", d.n.name, c.Op, text(c.Key), valueText(c.Value), c.Context, o)
	}
	return o
}

// claim ends the first synchronisation once every live peer has told all, or the time is
// over: syncd/daemon/membership.go.
func (d *simDaemon) claim() bool {
	s := d.n.sim
	if d.state != simSyncing {
		return d.state == simReplicating
	}
	late := s.now-d.since > simSyncTimeout
	if !late && (!d.synced() || (d.alone() && len(s.nodes) > 1)) {
		return false
	}
	if s.model != nil {
		s.model.claims(d, late)
		s.model.overflowed(d)
	}
	d.tab.Update(func(tx *Tx) {
		for tx.Claim(2) {
		}
	})
	d.state = simReplicating
	s.moves++
	s.notef("%s claims", d.n.name)
	return true
}

// note has the state file name the map once that holds what peers told.
func (d *simDaemon) note() {
	if d.noted || d.m == nil || d.state != simReplicating {
		return
	}
	if !d.heard && (d.alone() || !d.synced()) {
		return
	}
	if !d.heard {
		d.heard, d.heardAt = true, d.tab.seq
	}
	if d.tab.applied >= d.heardAt && d.tab.stats.Failed == 0 {
		d.noted, d.n.noted = true, d.m.id
	}
}

// upkeep lets tombstones expire and has failed writes tried again, between two passes of
// the syncer.
func (d *simDaemon) upkeep() {
	if d.phase != simFill {
		return
	}
	if d.n.early {
		d.acknowledge()
		d.tab.View((*Tx).ReclaimOwners)
	}
	before := d.tab.stats.Expired + d.tab.stats.Acknowledged
	d.tab.Update(func(tx *Tx) {
		for tx.Expire(d.n.clock(), 2) {
		}
		expired := d.tab.stats.EvictionsExpired
		for tx.ExpireEvicted(d.n.clock(), 2) {
		}
		if n := int(d.tab.stats.EvictionsExpired - expired); n > 0 {
			d.n.sim.moves += n
			d.n.sim.forgotten = true // the owner may live, cut off: nodes have to compare
		}
		tx.RequeueFailed(d.n.burst)
	})
	if m := d.n.sim.model; m != nil && d.tab.stats.Expired+d.tab.stats.Acknowledged > before {
		m.forgot(d)
	}
}

func (d *simDaemon) settle() {
	d.tab.Update(func(tx *Tx) { tx.Settle(d.n.clock(), 1024) })
}

var errGap = errors.New("gap in a stream")
