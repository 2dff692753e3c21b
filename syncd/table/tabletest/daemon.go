package tabletest

import (
	"errors"
	"time"

	"mapsync/syncd/table"
)

// Daemon is one incarnation of a daemon: a table, and the work around it.
//
// It does what syncd does, without its code: this package imports only package table. A difference in
// behaviour would hide faults, so it follows the files of syncd that the comments name. A Daemon ends
// with Stop, and its table is lost then. Only the kernel map and the state file stay.
type Daemon struct {
	n    *Node        // its host
	self table.Owner  // the incarnation is the clock at the start
	tab  *table.Table // nil until the first map is attached
	// layout is that of the table. converted is set until the first map of a converted table is read. epoch is the number of
	// conversions: positions of different epochs are unrelated.
	layout, epoch int
	converted     bool

	// The map of the table, as in syncd/daemon/replica.go.
	m               *Map                // nil: no map is attached
	state           mapState            // stateWaiting if and only if m is nil
	how             loadKind            // of the last attached map
	since           int64               // the time at which the map was attached
	begun           bool                // a stream has begun to send the table
	wasOffered      bool                // the table was offered to peers
	loaded          int                 // id of the last map that was read completely
	inStateFile     bool                // the state file names the map
	initialSyncDone bool                // the initial syncs of the peers are done
	restores        bool                // the state file names the map again once the entries of a clear are restored
	syncBarrier     *table.WriteBarrier // unwritten records at the end of the initial sync
	place           int                 // the position in the map that the load has reached
	read            []mapRead           // entries that were read and not entered yet
	queue           [numCPUs][]event    // events that have not reached the table, by CPU, oldest first

	syncer
	usesSince int64 // the time since which uses are observed; 0: they are not
	wallStep  int64 // the step of the wall clock that the table has
	scanning  bool  // a scan is in progress
	scanPlace int   // the position in the map that the scan has reached
	// scanBegan and scanDone are the times in ns at which the scan, and the latest complete one, began.
	scanBegan, scanDone int64
	// expiredEarly is the number of tombstones that the model has as forgotten early.
	expiredEarly uint64
	// scanExpired is the number of tombstones that were forgotten before the scan began.
	scanExpired uint64
	scanned     []mapRead     // entries that were read and not compared yet
	scanReading table.Reading // of the load or of the scan

	// awaited has a bit for each key, modulo 64, of which the daemon has filtered a record.
	awaited uint64
	// unsentDeletes has a bit for each key, modulo 64, whose delete the daemon could not send. See hasUnsentDeletes.
	unsentDeletes uint64
	afterClean    bool // the last daemon of the map was stopped cleanly
	// unfit has the records that the latest conversion has dropped, by key.
	unfit map[int]Content
	// regained has the positions of the records of this node that it did not have when a peer sent them, by key. Nil: none.
	regained map[int]regained
	// named has the owners that peers have only named, by key of the entry. A record that peers send later removes the key.
	named map[int]table.Owner
	// superseded has the records that live peers have superseded, by key. Nil: none yet.
	superseded map[int]supersededBy

	members
	streams
}

// mapState is the state of a map at a node.
type mapState uint8

const (
	stateWaiting     mapState = iota // no map is attached
	stateLoading                     // the map is being read
	stateSyncing                     // the table is offered; the records of peers are awaited
	stateReplicating                 // unversioned entries were adopted
)

// loadKind defines how the table treats the content of a newly attached map.
type loadKind uint8

const (
	loadFirst  loadKind = iota // entries that an earlier incarnation may have left
	loadRefill                 // a new map: writes of the load balancer since its creation
	loadAgain                  // the same map: treated like the result of a scan
)

// mapRead is the result of one read of a key.
type mapRead struct {
	key   int  // number of the key
	found bool // the map had an entry
	value Value
	at    int64 // the time just before the read, by the node's clock
}

// syncTimeout is the setting sync-timeout: the maximum wait for the records of peers, in nanoseconds.
const syncTimeout = int64(30 * time.Second)

// Start starts a daemon. The content of the node's map is not loaded yet. Peers detect it with their
// next views.
func (n *Node) Start() {
	d := &Daemon{n: n, named: make(map[int]table.Owner), self: table.Owner{Node: n.Name, Incarnation: n.beginIncarnation()}}
	d.initMembers()
	n.Daemon, n.frozen, n.incarnations = d, false, n.incarnations+1
	n.last = [numCPUs]int64{} // in the clock of another incarnation
	n.world.moves++
	n.world.notef("%s starts as %d", n.Name, d.self.Incarnation)
}

// Stop ends the daemon without notifying its peers. The kernel map stays. Messages that are in flight to
// the daemon are lost.
func (n *Node) Stop() {
	d := n.Daemon
	n.noteUnrestored()
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

// notef passes an event of the run to notes.
func (w *World) notef(format string, args ...any) {
	if w.notes != nil {
		w.notes(format, args...)
	}
}

// attach attaches the map of the load balancer to the daemon.
//
// It chooses how the table treats the entries of the map. The first map of a table may hold entries of
// an earlier incarnation. The same map again is compared like a scan. Another map is refilled from the
// table, and its entries were written since its creation.
func (d *Daemon) attach() {
	n := d.n
	// Only then does an absent key mean a delete.
	same := n.StateFileMap == n.Map.ID
	if !d.wasOffered {
		o := n.opt
		o.LRU, o.MaxEntries, o.Room = n.lru, n.room, n.fills()
		o = layouts[n.Map.layout].in(o)
		o.Self, o.Seed, o.SameMap = d.self, 1, same
		if same {
			o.Unheld = n.stateUnheld
		}
		o.WallOffset, d.wallStep = n.wallStep, n.wallStep
		o.Stop = n.takeStop()
		d.tab, d.layout = n.world.tables.get(n.world.tb, o), n.Map.layout
		if n.leastClear > 0 {
			d.internals().HoldSmallClears(d.tab, n.leastClear)
		}
		d.restoreHandover()
	}
	d.m, d.state, d.since, d.inStateFile, d.initialSyncDone = n.Map, stateLoading, n.world.Now, same, false
	d.restores = false
	d.tab.View(func(tx *table.Tx) { tx.RemoveBarrier(d.syncBarrier); tx.RemoveBarrier(d.returnBarrier) })
	d.place, d.read, d.returnBarrier = 0, d.read[:0], nil
	switch {
	case !d.wasOffered:
		d.how = loadFirst
		d.tab.Update(func(tx *table.Tx) { tx.DelayAbsent(); tx.BeginLoad() })
	case d.loaded == d.m.ID:
		d.how = loadAgain
		d.tab.Update(func(tx *table.Tx) { tx.BeginScan(d.n.clock()) })
	default:
		d.how = loadRefill
		if d.layout != n.Map.layout {
			d.convert(n.Map.layout)
		}
		o := n.opt
		o.LRU, o.MaxEntries, o.Room = n.lru, n.room, n.fills()
		d.tab.Update(func(tx *table.Tx) {
			tx.SetMap(o)
			tx.Refill()
		})
	}
	if n.world.Model != nil {
		n.world.Model.mapAttached(n, d.how, same)
	}
	// Until it is read completely, the map does not count as loaded.
	if d.how != loadAgain {
		d.loaded = 0
	}
	n.world.moves++
	n.world.notef("%s attaches map %d", n.Name, d.m.ID)
}

// detach detaches the map from the table. A batch of writes in progress ends first. The table and its
// streams stay.
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

// follow attaches and detaches the map when the load balancer creates or removes it. It does one step: a
// replaced map is detached first, and attached by the next call.
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

// load reads the next entries of the map, or enters the entries that were read. It divides reading and
// entering, so that the load balancer may change an entry in between.
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

// enter enters one entry that was read, in the way of the current load.
func (d *Daemon) enter(tx *table.Tx, r *mapRead) {
	c := d.change(r)
	d.reportRead(tx, r)
	switch d.how {
	case loadFirst:
		tx.Load(c.Key, c.Value)
	case loadRefill:
		c.Read = &d.scanReading
		if m := d.n.world.Model; m != nil {
			m.readCopy(d.n, tx, r)
		}
		tx.LoadNewMap(&c, !d.converted && d.synced())
	case loadAgain:
		c.Read = &d.scanReading
		tx.Scanned(&c)
	}
}

// change returns the change that reports a read to the table. It borrows the memory of r.
func (d *Daemon) change(r *mapRead) table.Change {
	c := table.Change{Key: d.key(r.key), Time: r.at, Op: table.OpDelete, Context: table.ContextReread}
	if r.found {
		c.Op, c.Value = table.OpUpdate, d.bytes(&r.value)
	}
	return c
}

// reportRead reports to the model that a daemon has read a key of its map.
func (d *Daemon) reportRead(tx *table.Tx, r *mapRead) {
	if m := d.n.world.Model; m != nil {
		m.read(d.n, tx, r)
	}
}

// replicate ends the load, starts the syncer and offers the table to peers. Unversioned entries are not
// sent before Adopt.
func (d *Daemon) replicate() {
	if d.how == loadFirst {
		d.tab.Update((*table.Tx).EndLoad)
	}
	if !d.wasOffered {
		d.wasOffered = true
		d.applyGone()
	}
	d.loaded, d.serving, d.converted, d.state = d.m.ID, true, false, stateSyncing
	d.openSyncer()
	d.n.world.moves++
}

// Adopt ends the initial sync once every live peer has sent all its records, or after syncTimeout,
// as in syncd/daemon/replica_initial_sync.go.
//
// A node that sees no other node waits for the timeout: it may be cut off. Adopt returns whether the
// table has adopted its entries, now or earlier.
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
	}
	d.checkRestores()
	d.tab.Update(d.adopt)
	d.state = stateReplicating
	w.moves++
	w.notef("%s adopts", d.n.Name)
	return true
}

// upkeep expires tombstones and requeues failed writes, between two passes of the syncer. It does
// nothing during a pass.
func (d *Daemon) upkeep() {
	if d.phase != phaseFill {
		return
	}
	d.noteForgottenEarly()
	if d.n.forgetAcknowledged {
		d.acknowledge()
		d.tab.View((*table.Tx).ReclaimOwners)
	}
	d.followClock()
	before := *d.stats()
	d.tab.Update(func(tx *table.Tx) {
		if d.state == stateReplicating && tx.AbsentWait() && (d.allReceived() || d.n.world.Now-d.since > 2*syncTimeout) {
			tx.DecideAbsent()
		}
		d.checkSettled(tx, d.settleDeletes)
		if w := d.n.world; w.Model != nil {
			for key := range w.keys {
				w.Model.checkAbsence(d, tx, key)
			}
		}
		for tx.Expire(d.n.clock(), 2) {
		}
		for tx.ExpireEvicted(d.n.clock(), 2) {
		}
		tx.RequeueFailed(d.n.burst)
	})
	d.expireTakenOver()
	after := d.stats()
	if n := int(after.EvictionsExpired - before.EvictionsExpired); n > 0 {
		d.n.world.moves += n
		// An expiry that a peer does not receive leaves its record there.
		d.n.world.forgotten = true // the owner may be alive but cut off: the nodes must compare
	}
	lapsed, acknowledged := after.Expired-before.Expired, after.Acknowledged-before.Acknowledged
	m := d.n.world.Model
	if m != nil && lapsed+acknowledged > 0 {
		m.noteForgotten(d, lapsed > 0)
	}
}

// noteForgottenEarly adds the deletes to the model that the table has forgotten since the last call, because
// there were too many. It is called before peers receive more from the daemon, which may lack these deletes then, and before
// the daemon receives more from them.
func (d *Daemon) noteForgottenEarly() {
	m := d.n.world.Model
	if m == nil || d.tab == nil || d.stats().ExpiredEarly == d.expiredEarly {
		return
	}
	d.expiredEarly = d.stats().ExpiredEarly
	m.noteForgotten(d, true)
	if !d.initialSyncDone {
		m.noteOverflow(d)
	}
}

// settle requests the rereads of new keys that are due.
func (d *Daemon) settle() {
	d.tab.Update(func(tx *table.Tx) { tx.Settle(d.n.clock(), 1024) })
}

// errGap is a fault of the simulated streams or of a cursor: no message is lost within a stream.
var errGap = errors.New("gap in a stream")
