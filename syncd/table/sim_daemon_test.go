package table

import (
	"errors"
	"fmt"
	"time"
)

// simDaemon is one incarnation of a daemon: a table, and the work around it.
type simDaemon struct {
	n    *simNode
	self Owner
	tab  *Table // nil until the first map is attached

	// The map of the table, as in syncd/daemon/replica.go.
	m               *simMap // nil: no map is attached
	state           simState
	how             simLoad
	since           int64  // the time at which the map was attached
	wasOffered      bool   // the table was offered to peers
	loaded          int    // id of the last map that was read completely
	inStateFile     bool   // the state file names the map
	initialSyncDone bool   // the initial syncs of the peers are done, up to initialSyncPos
	initialSyncPos  uint64 // position at the end of the initial sync
	place           int    // the position in the map that the load has reached
	read            []simRead
	queue           [simCPUs][]simEvent

	simSyncer
	scanning  bool
	scanPlace int
	// scanExpired is the number of tombstones that were forgotten before the scan began.
	scanExpired uint64
	scanned     []simRead
	scanReading Reading

	simMembers
	simStreams
}

// simState is the state of a map at a node.
type simState uint8

const (
	simWaiting simState = iota
	simLoading
	simSyncing
	simReplicating
)

// simLoad says how the table treats the content of a newly attached map.
type simLoad uint8

const (
	loadFirst  simLoad = iota // entries that an earlier incarnation may have left
	loadRefill                // a new map: writes of the load balancer since its creation
	loadAgain                 // the same map: treated like the result of a scan
)

// simRead is the result of one read of a key.
type simRead struct {
	key   int
	found bool
	value entryValue
	at    int64
}

const simSyncTimeout = int64(30 * time.Second)

// start starts a daemon. The content of the node's map is not loaded yet.
func (n *simNode) start() {
	d := &simDaemon{n: n, self: Owner{n.name, uint64(n.clock())}}
	d.initMembers()
	n.d, n.frozen, n.incarnations = d, false, n.incarnations+1
	n.last = [simCPUs]int64{} // in the clock of another incarnation
	n.sim.moves++
	n.sim.notef("%s starts as %d", n.name, d.self.Incarnation)
}

// stop ends the daemon without notifying its peers. The kernel map stays.
func (n *simNode) stop() {
	d := n.d
	for len(d.outbound) > 0 {
		d.outbound[0].end()
	}
	for _, l := range d.inbound {
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

// attach attaches the map of the load balancer to the daemon.
func (d *simDaemon) attach() {
	n := d.n
	same := n.stateFileMap == n.lb.id
	if !d.wasOffered {
		o := n.opt
		o.LRU, o.MaxEntries = n.lru, n.room
		o.Self, o.KeySize, o.ValueSize, o.Seed, o.SameMap = d.self, simKey, simValue, 1, same
		d.tab = n.sim.tables.get(n.sim.tb, o)
	}
	d.m, d.state, d.since, d.inStateFile, d.initialSyncDone = n.lb, simLoading, n.sim.now, same, false
	d.place, d.read = 0, d.read[:0]
	switch {
	case !d.wasOffered:
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
		n.sim.model.mapReplaced(n)
	}
	if d.how != loadAgain {
		d.loaded = 0
	}
	n.sim.moves++
	n.sim.notef("%s attaches map %d", n.name, d.m.id)
}

// detach detaches the map from the table.
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
		d.queue[cpu] = nil // events are not needed while the map is not observed
	}
	d.m, d.state, d.scanning = nil, simWaiting, false
	d.n.sim.moves++
	d.n.sim.notef("%s detaches its map", d.n.name)
}

// follow attaches and detaches the map when the load balancer creates or removes it.
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
		d.serving = true // the daemon has looked for the map
	}
}

// load reads the next entries of the map, or enters the entries that were read.
func (d *simDaemon) load(limit int) {
	if len(d.read) == 0 && d.place < len(d.m.entries) {
		d.tab.View(func(tx *Tx) { tx.BeginReading(&d.scanReading) })
		d.read, d.place = d.m.readEntries(d.read, d.place, limit, d.n.readClock())
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
	d.reportRead(tx, r)
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

// change returns the change that reports a read to the table.
func (d *simDaemon) change(r *simRead) Change {
	c := Change{Key: d.n.sim.keys[r.key][:], Time: r.at, Op: OpDelete, Context: ContextReread}
	if r.found {
		c.Op, c.Value = OpUpdate, r.value[:]
	}
	return c
}

// reportRead reports to the model that a daemon has read a key of its map.
func (d *simDaemon) reportRead(tx *Tx, r *simRead) {
	if m := d.n.sim.model; m != nil {
		m.read(d.n, tx, r)
	}
}

// replicate offers the table to peers.
func (d *simDaemon) replicate() {
	if d.how == loadFirst {
		d.tab.Update((*Tx).EndLoad)
	}
	if !d.wasOffered {
		d.wasOffered = true
		d.applyGone()
	}
	d.loaded, d.serving, d.state = d.m.id, true, simSyncing
	d.openSyncer()
	d.n.sim.moves++
}

// deliver enters the oldest event of one CPU, if it is its turn. The event buffer keeps the order of
// all events except those at about the same time.
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

const simDisorder = 5 * timestampMargin

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
		d.tab.Update(func(tx *Tx) { tx.RequestReread(c.Key) })
		return
	}
	before := d.content(e.key)
	o := d.local(&c)
	if e.op != OpUpdate && before.live() {
		d.checkDelete(e, &before, o)
	}
}

func (d *simDaemon) content(key int) (c simContent) {
	d.tab.View(func(tx *Tx) { c = d.n.content(tx, key) })
	return c
}

// checkDelete checks which deletes take effect. A collector's delete and an eviction may only delete
// records of this node or of a gone node. A collector's delete must delete those.
func (d *simDaemon) checkDelete(e *simEvent, before *simContent, o Outcome) {
	s := d.n.sim
	owner := s.node(before.owner.Node)
	allowed := before.version != 0 && (owner == d.n.id || d.gone[owner])
	after := d.content(e.key)
	switch deleted := after.dead && after.version != 0; {
	case e.op == OpDelete && e.ctx != ContextSyscall:
		return // the data plane may delete any record
	case deleted && !allowed, e.op == OpDelete && before.version != 0 && allowed == (o == Restored):
		s.fail(fmt.Errorf("%s: the %s of %s, %v, by %s is %s", d.n.name, e.op, s.name(e.key), before, e.ctx, o))
	}
}

func (d *simDaemon) local(c *Change) (o Outcome) {
	d.tab.Update(func(tx *Tx) { tx.AdvanceClock(d.n.clock()); o = tx.Local(c) })
	if o == Accepted || o == Restored {
		d.n.sim.moves++
	}
	if d.n.sim.trace != nil {
		d.n.sim.trace("%s %s %s %s by %s: %s", d.n.name, c.Op, text(c.Key), valueText(c.Value), c.Context, o)
	}
	return o
}

// adopt ends the initial sync once every live peer has sent all its records, or after simSyncTimeout,
// as in syncd/daemon/membership.go.
func (d *simDaemon) adopt() bool {
	s := d.n.sim
	if d.state != simSyncing {
		return d.state == simReplicating
	}
	late := s.now-d.since > simSyncTimeout
	if !late && (!d.synced() || (d.alone() && len(s.nodes) > 1)) {
		return false
	}
	if s.model != nil {
		s.model.checkAdoption(d, late)
		s.model.noteOverflow(d)
	}
	d.tab.Update(func(tx *Tx) {
		for tx.Adopt(2) {
		}
	})
	d.state = simReplicating
	s.moves++
	s.notef("%s adopts", d.n.name)
	return true
}

// saveMapID stores the id of the map in the state file once the map holds the records of the initial
// sync.
func (d *simDaemon) saveMapID() {
	if d.inStateFile || d.m == nil || d.state != simReplicating {
		return
	}
	if !d.initialSyncDone && (d.alone() || !d.allReceived()) {
		return
	}
	if !d.initialSyncDone {
		d.initialSyncDone, d.initialSyncPos = true, d.head()
	}
	if st := d.tab.Stats(); st.Applied >= d.initialSyncPos && st.Failed == 0 {
		d.inStateFile, d.n.stateFileMap = true, d.m.id
	}
}

// upkeep expires tombstones and requeues failed writes, between two passes of the syncer.
func (d *simDaemon) upkeep() {
	if d.phase != simFill {
		return
	}
	if d.n.forgetAcknowledged {
		d.acknowledge()
		d.tab.View((*Tx).ReclaimOwners)
	}
	before := d.tab.Stats()
	d.tab.Update(func(tx *Tx) {
		for tx.Expire(d.n.clock(), 2) {
		}
		for tx.ExpireEvicted(d.n.clock(), 2) {
		}
		tx.RequeueFailed(d.n.burst)
	})
	after := d.tab.Stats()
	if n := int(after.EvictionsExpired - before.EvictionsExpired); n > 0 {
		d.n.sim.moves += n
		d.n.sim.forgotten = true // the owner may be alive but cut off: the nodes must compare
	}
	lapsed, acknowledged := after.Expired-before.Expired, after.Acknowledged-before.Acknowledged
	if m := d.n.sim.model; m != nil && lapsed+acknowledged > 0 {
		m.noteForgotten(d, lapsed > 0)
	}
}

func (d *simDaemon) settle() {
	d.tab.Update(func(tx *Tx) { tx.Settle(d.n.clock(), 1024) })
}

var errGap = errors.New("gap in a stream")
