package tabletest

import (
	"errors"
	"fmt"
	"time"

	"mapsync/syncd/table"
)

// Daemon is one incarnation of a daemon: a table, and the work around it.
type Daemon struct {
	n    *Node
	self table.Owner
	tab  *table.Table // nil until the first map is attached

	// The map of the table, as in syncd/daemon/replica.go.
	m               *Map // nil: no map is attached
	state           mapState
	how             loadKind
	since           int64  // the time at which the map was attached
	wasOffered      bool   // the table was offered to peers
	loaded          int    // id of the last map that was read completely
	inStateFile     bool   // the state file names the map
	initialSyncDone bool   // the initial syncs of the peers are done, up to initialSyncPos
	initialSyncPos  uint64 // position at the end of the initial sync
	place           int    // the position in the map that the load has reached
	read            []mapRead
	queue           [numCPUs][]event

	syncer
	scanning  bool
	scanPlace int
	// scanExpired is the number of tombstones that were forgotten before the scan began.
	scanExpired uint64
	scanned     []mapRead
	scanReading table.Reading

	members
	streams
}

// mapState is the state of a map at a node.
type mapState uint8

const (
	stateWaiting mapState = iota
	stateLoading
	stateSyncing
	stateReplicating
)

// loadKind says how the table treats the content of a newly attached map.
type loadKind uint8

const (
	loadFirst  loadKind = iota // entries that an earlier incarnation may have left
	loadRefill                 // a new map: writes of the load balancer since its creation
	loadAgain                  // the same map: treated like the result of a scan
)

// mapRead is the result of one read of a key.
type mapRead struct {
	key   int
	found bool
	value Value
	at    int64
}

const syncTimeout = int64(30 * time.Second)

// Start starts a daemon. The content of the node's map is not loaded yet.
func (n *Node) Start() {
	d := &Daemon{n: n, self: table.Owner{Node: n.Name, Incarnation: uint64(n.clock())}}
	d.initMembers()
	n.Daemon, n.frozen, n.incarnations = d, false, n.incarnations+1
	n.last = [numCPUs]int64{} // in the clock of another incarnation
	n.world.moves++
	n.world.notef("%s starts as %d", n.Name, d.self.Incarnation)
}

// Stop ends the daemon without notifying its peers. The kernel map stays.
func (n *Node) Stop() {
	d := n.Daemon
	for len(d.outbound) > 0 {
		d.outbound[0].end()
	}
	for _, l := range d.Inbound {
		if l != nil {
			l.cut()
		}
	}
	n.Daemon = nil
	n.world.moves++
	n.world.notef("%s stops", n.Name)
}

func (w *World) notef(format string, args ...any) {
	if w.notes != nil {
		w.notes(format, args...)
	}
}

// attach attaches the map of the load balancer to the daemon.
func (d *Daemon) attach() {
	n := d.n
	same := n.StateFileMap == n.Map.ID
	if !d.wasOffered {
		o := n.opt
		o.LRU, o.MaxEntries = n.lru, n.room
		o.Self, o.KeySize, o.ValueSize, o.Seed, o.SameMap = d.self, keySize, valueSize, 1, same
		d.tab = n.world.tables.get(n.world.tb, o)
	}
	d.m, d.state, d.since, d.inStateFile, d.initialSyncDone = n.Map, stateLoading, n.world.Now, same, false
	d.place, d.read = 0, d.read[:0]
	switch {
	case !d.wasOffered:
		d.how = loadFirst
		d.tab.Update((*table.Tx).BeginLoad)
	case d.loaded == d.m.ID:
		d.how = loadAgain
		d.tab.Update((*table.Tx).BeginScan)
	default:
		d.how = loadRefill
		d.tab.Update((*table.Tx).Refill)
	}
	if n.world.Model != nil && (d.how == loadRefill || (d.how == loadFirst && !same)) {
		n.world.Model.mapReplaced(n)
	}
	if d.how != loadAgain {
		d.loaded = 0
	}
	n.world.moves++
	n.world.notef("%s attaches map %d", n.Name, d.m.ID)
}

// detach detaches the map from the table.
func (d *Daemon) detach() {
	for d.state >= stateSyncing && d.phase != phaseFill {
		d.work(1 << 20)
	}
	d.closeSyncer()
	for cpu := range d.queue {
		for i := range d.queue[cpu] {
			if w := d.n.world; w.Model != nil {
				w.Model.dropped(d.n, d.queue[cpu][i].key)
			}
		}
		d.queue[cpu] = nil // events are not needed while the map is not observed
	}
	d.m, d.state, d.scanning = nil, stateWaiting, false
	d.n.world.moves++
	d.n.world.notef("%s detaches its map", d.n.Name)
}

// follow attaches and detaches the map when the load balancer creates or removes it.
func (d *Daemon) follow() {
	there := d.n.Map
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
func (d *Daemon) load(limit int) {
	if len(d.read) == 0 && d.place < len(d.m.entries) {
		d.tab.View(func(tx *table.Tx) { tx.BeginReading(&d.scanReading) })
		d.read, d.place = d.m.readEntries(d.read, d.place, limit, d.n.readClock())
		return
	}
	d.tab.Update(func(tx *table.Tx) {
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

func (d *Daemon) enter(tx *table.Tx, r *mapRead) {
	c := d.change(r)
	d.reportRead(tx, r)
	switch d.how {
	case loadFirst:
		tx.Load(c.Key, c.Value)
	case loadRefill:
		c.Context = table.ContextProcess
		tx.Local(&c)
	case loadAgain:
		c.Read = &d.scanReading
		tx.Scanned(&c)
	}
}

// change returns the change that reports a read to the table.
func (d *Daemon) change(r *mapRead) table.Change {
	c := table.Change{Key: d.n.world.keys[r.key][:], Time: r.at, Op: table.OpDelete, Context: table.ContextReread}
	if r.found {
		c.Op, c.Value = table.OpUpdate, r.value[:]
	}
	return c
}

// reportRead reports to the model that a daemon has read a key of its map.
func (d *Daemon) reportRead(tx *table.Tx, r *mapRead) {
	if m := d.n.world.Model; m != nil {
		m.read(d.n, tx, r)
	}
}

// replicate offers the table to peers.
func (d *Daemon) replicate() {
	if d.how == loadFirst {
		d.tab.Update((*table.Tx).EndLoad)
	}
	if !d.wasOffered {
		d.wasOffered = true
		d.applyGone()
	}
	d.loaded, d.serving, d.state = d.m.ID, true, stateSyncing
	d.openSyncer()
	d.n.world.moves++
}

// Deliver enters the oldest event of one CPU, if it is its turn. The event buffer keeps the order of
// all events except those at about the same time.
func (d *Daemon) Deliver(cpu int) {
	q := d.queue[cpu]
	if len(q) == 0 {
		return
	}
	for _, o := range d.queue {
		if len(o) > 0 && q[0].time > o[0].time+maxDisorder {
			return
		}
	}
	e := q[0]
	d.queue[cpu] = q[1:]
	d.event(&e)
}

const maxDisorder = 5 * TimestampMargin

func (d *Daemon) event(e *event) {
	d.n.world.moves++
	if d.m == nil || e.mapID != d.m.ID {
		return
	}
	c := table.Change{Key: d.n.world.keys[e.key][:], Time: e.time, CPU: e.cpu, Op: e.op, Context: e.ctx}
	if e.op == table.OpUpdate {
		c.Value = e.value[:]
	}
	if d.n.world.keysOnly && e.op == table.OpUpdate {
		d.tab.Update(func(tx *table.Tx) { tx.RequestReread(c.Key) })
		return
	}
	before := d.Content(e.key)
	o := d.local(&c)
	if e.op != table.OpUpdate && before.Live() {
		d.checkDelete(e, &before, o)
	}
}

// Content returns what the table holds of a key.
func (d *Daemon) Content(key int) (c Content) {
	d.tab.View(func(tx *table.Tx) { c = d.n.content(tx, key) })
	return c
}

// checkDelete checks which deletes take effect. A collector's delete and an eviction may only delete
// records of this node or of a gone node. A collector's delete must delete those.
func (d *Daemon) checkDelete(e *event, before *Content, o table.Outcome) {
	w := d.n.world
	owner := w.node(before.Owner.Node)
	allowed := before.version != 0 && (owner == d.n.ID || d.gone[owner])
	after := d.Content(e.key)
	switch deleted := after.Dead && after.version != 0; {
	case e.op == table.OpDelete && e.ctx != table.ContextSyscall:
		return // the data plane may delete any record
	case deleted && !allowed, e.op == table.OpDelete && before.version != 0 && allowed == (o == table.Restored):
		w.fail(fmt.Errorf("%s: the %s of %s, %v, by %s is %s", d.n.Name, e.op, w.name(e.key), before, e.ctx, o))
	}
}

func (d *Daemon) local(c *table.Change) (o table.Outcome) {
	d.tab.Update(func(tx *table.Tx) { tx.AdvanceClock(d.n.clock()); o = tx.Local(c) })
	if o == table.Accepted || o == table.Restored {
		d.n.world.moves++
	}
	if d.n.world.trace != nil {
		d.n.world.trace("%s %s %s %s by %s: %s", d.n.Name, c.Op, trimmed(c.Key), valueText(c.Value), c.Context, o)
	}
	return o
}

// Adopt ends the initial sync once every live peer has sent all its records, or after syncTimeout,
// as in syncd/daemon/membership.go.
func (d *Daemon) Adopt() bool {
	w := d.n.world
	if d.state != stateSyncing {
		return d.state == stateReplicating
	}
	late := w.Now-d.since > syncTimeout
	if !late && (!d.synced() || (d.alone() && len(w.Nodes) > 1)) {
		return false
	}
	if w.Model != nil {
		w.Model.checkAdoption(d, late)
		w.Model.noteOverflow(d)
	}
	d.tab.Update(func(tx *table.Tx) {
		for tx.Adopt(2) {
		}
	})
	d.state = stateReplicating
	w.moves++
	w.notef("%s adopts", d.n.Name)
	return true
}

// SaveMapID stores the id of the map in the state file once the map holds the records of the initial
// sync.
func (d *Daemon) SaveMapID() {
	if d.inStateFile || d.m == nil || d.state != stateReplicating {
		return
	}
	if !d.initialSyncDone && (d.alone() || !d.allReceived()) {
		return
	}
	if !d.initialSyncDone {
		d.initialSyncDone, d.initialSyncPos = true, d.head()
	}
	if d.applied() >= d.initialSyncPos && d.stats().Failed == 0 {
		d.inStateFile, d.n.StateFileMap = true, d.m.ID
	}
}

// upkeep expires tombstones and requeues failed writes, between two passes of the syncer.
func (d *Daemon) upkeep() {
	if d.phase != phaseFill {
		return
	}
	if d.n.forgetAcknowledged {
		d.acknowledge()
		d.tab.View((*table.Tx).ReclaimOwners)
	}
	before := *d.stats()
	d.tab.Update(func(tx *table.Tx) {
		for tx.Expire(d.n.clock(), 2) {
		}
		for tx.ExpireEvicted(d.n.clock(), 2) {
		}
		tx.RequeueFailed(d.n.burst)
	})
	after := d.stats()
	if n := int(after.EvictionsExpired - before.EvictionsExpired); n > 0 {
		d.n.world.moves += n
		d.n.world.forgotten = true // the owner may be alive but cut off: the nodes must compare
	}
	lapsed, acknowledged := after.Expired-before.Expired, after.Acknowledged-before.Acknowledged
	if m := d.n.world.Model; m != nil && lapsed+acknowledged > 0 {
		m.noteForgotten(d, lapsed > 0)
	}
}

func (d *Daemon) settle() {
	d.tab.Update(func(tx *table.Tx) { tx.Settle(d.n.clock(), 1024) })
}

var errGap = errors.New("gap in a stream")
