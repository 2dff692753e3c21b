package tabletest

import (
	"strings"

	"mapsync/syncd/table"
)

// World is a cluster of load balancers that write kernel maps. It simulates the work of the daemon
// around the table of each node in small steps. A script or a random run can interleave the steps in
// any way. Time is simulated, and nothing depends on the order of a Go map: the same steps have the
// same result.
//
// One goroutine uses a world. The number of a node is its index in Nodes, and the number of a key its
// index in keys.
type World struct {
	tb    interface{ Fatal(...any) }
	Now   int64      // the time in ns; never decreases
	Nodes []*Node    // in ascending order of their names
	keys  []entryKey // by number
	// converted has the bytes of the keys in the layouts after the first one.
	converted [len(layouts)][][]byte
	index     map[entryKey]int // the number of each key
	// Cuts[i][j] is set while no message gets from node i to node j.
	Cuts        [][]bool
	maxAhead    int64                            // max-clock-ahead in ns; 0: no limit
	digestKey   []byte                           // the newest digest key; nil: it has not changed
	tick        int64                            // granularity of all clocks in ns, if above 1 ns
	scans       bool                             // maps are scanned before the cluster counts as idle
	blind       bool                             // hooks are unavailable
	deletedKeys bool                             // hooks report the key of a delete by bpf(2), which the daemon rereads
	keysOnly    bool                             // hooks report which key was updated, also by the daemon, without the value
	moves       int                              // number of changes so far: the cluster is idle if it does not grow
	mapIDs      int                              // id of the last map
	tables      *Tables                          // creates the tables of the daemons
	Model       *Model                           // computes the expected state; nil in scripts
	trace       func(format string, args ...any) // receives the outcomes of changes; nil: unused
	notes       func(format string, args ...any) // receives other events; nil: unused
	OnReceive   func(from, to *Node, key int)    // called for each record of a stream; nil: unused
	err         error                            // the first error
	repaired    int                              // number of records that comparisons repaired
	compacted   int                              // number of compacted tombstones
	// forgotten: a table that is gone had forgotten a tombstone.
	forgotten bool
	// filtered: a record was filtered, so the nodes must compare.
	filtered bool
	// Defended: an unverified owner's record did not replace another record, so the nodes must compare.
	Defended bool
	// inferred: a table has inferred a delete. Another node may have an older record of the key, which only a repair brings, so
	// the nodes must compare.
	inferred bool
}

// entryKey is the key of an entry.
type entryKey [keySize]byte

// Value is the value of an entry.
type Value [valueSize]byte

// TimestampMargin is the constant timestampMargin of package table in nanoseconds: the minimum distance of
// events of two CPUs for their times to show their order.
const TimestampMargin = 1_000_000

const (
	keySize   = 8
	valueSize = 8
	numCPUs   = 3
	startTime = int64(1_500_000_000_000_000_000) // above table.RestoredVersions
)

// Node is a host: a load balancer with its map, and a daemon, which may be down.
type Node struct {
	world              *World
	ID                 int           // its index in World.Nodes
	Name               string        // unique in the world
	Offset             int64         // of the node's clock in ns
	opt                table.Options // of its tables, without sizes and identity
	room               int           // maximum number of entries of its maps; 0: unlimited
	lru                bool          // its maps evict entries
	evictionsUnseen    bool          // no hook reports them
	forgetAcknowledged bool          // its table forgets acknowledged tombstones
	burst              int           // maximum number of records that the writer takes at a time

	Map          *Map         // of the load balancer
	hidden       bool         // the daemon cannot open the map
	StateFileMap int          // id of the map that the state file names; 0: none
	stateUnheld  table.Unheld // the unheld keys in the state file
	unheldKeys   uint64       // has a bit for each key, modulo 64, that stateUnheld may have
	lacking      map[int]bool // see Daemon.noteLacking
	uses         []int64      // by key: the time of the last use; nil: uses are not observed
	stop         table.Stop   // what the last daemon has saved at a clean stop
	stopMap      int          // id of the map that stop belongs to; 0: none
	clean        bool         // no daemon has attached the map since the last clean stop
	restoring
	filtering
	clocks
	layout   int  // of its next map
	copied   *Map // the copy of the map that the load balancer makes; nil: none
	clearing bool // the load balancer clears its map
	// stoppedUntil is the time up to which the load balancer does nothing after a clear.
	stoppedUntil int64
	leastClear   int            // the lowest number of entries of a clear; 0: that of package table
	handover     table.Handover // what the node has handed over, as in state-dir
	last         [numCPUs]int64 // time of the last event by CPU; the times of one CPU ascend
	frozen       bool           // the daemon gets no CPU time
	faulty       func() bool    // returns true if a write into the map fails with "no memory"; nil: never
	Daemon       *Daemon        // nil: the daemon is down
	incarnations int            // number of incarnations of its daemon
}

// Map is a kernel map. A daemon may still hold one that its load balancer has replaced.
type Map struct {
	ID      int     // above 0, unique in the world
	layout  int     // index in layouts
	entries []entry // by key
	n       int     // number of live entries
	clock   int     // number of uses so far
}

// entry is the state of one key in a map.
type entry struct {
	live    bool // the map has the key
	evicted bool // the entry was evicted at some time
	value   Value
	used    int // Map.clock at the last write
	// timerSince is the time in ns at which the load balancer has set up the timer.
	timerSince int64
}

// event is an event of a hook. It reports the change as it was, even if the entry has changed since.
type event struct {
	mapID int
	key   int
	value Value
	time  int64 // by the clock of the node, with the error of the hook
	cpu   uint16
	op    table.Op
	ctx   table.Context
}

// NewWorld returns a world of nodes whose daemons are down and whose maps are empty. The names ascend. It
// reports to tb if it cannot create a table.
func NewWorld(tb interface{ Fatal(...any) }, tables *Tables, names ...string) *World {
	w := &World{tb: tb, tables: tables, Now: startTime, index: make(map[entryKey]int)}
	for i, name := range names {
		n := &Node{world: w, ID: i, Name: name, burst: 1 << 20, lacking: make(map[int]bool)}
		n.Map = w.NewMap()
		w.Nodes = append(w.Nodes, n)
		w.Cuts = append(w.Cuts, make([]bool, len(names)))
	}
	return w
}

// NewMap returns an empty map that no node has yet.
func (w *World) NewMap() *Map {
	w.mapIDs++
	return &Map{ID: w.mapIDs, entries: make([]entry, len(w.keys))}
}

// Key returns the number of a key and gives a new key a number. b has 8 bytes.
func (w *World) Key(b []byte) int {
	k := entryKey(b)
	i, ok := w.index[k]
	if !ok {
		i = len(w.keys)
		w.keys = append(w.keys, k)
		w.index[k] = i
		for _, n := range w.Nodes {
			n.Map.entries = append(n.Map.entries, entry{})
		}
	}
	return i
}

// name returns the name of a key.
func (w *World) name(key int) string { return trimmed(w.keys[key][:]) }

// open reports whether two nodes can communicate. It needs both directions.
func (w *World) open(i, j int) bool { return !w.Cuts[i][j] && !w.Cuts[j][i] }

// fail records the first error. Later ones are often its consequences.
func (w *World) fail(err error) {
	if w.err == nil {
		w.err = err
	}
}

// padded returns a name as a key or value. Both have the same size.
func padded(s string) []byte {
	b := make([]byte, keySize)
	copy(b, s)
	return b
}

// trimmed returns the name of a key or value.
func trimmed(b []byte) string { return strings.TrimRight(string(b), "\x00") }

// clock returns the wall clock of the node in nanoseconds, with its offset and granularity.
func (n *Node) clock() int64 {
	now := n.world.Now + n.Offset
	if n.suspendedAt != 0 {
		now = n.suspendedAt + n.Offset
	}
	return now - now%max(n.world.tick, 1)
}

// readClock returns the time before a read of the map. With a coarse clock, the times of events have a
// finer resolution than the clock. Events that come before the read still have earlier times.
func (n *Node) readClock() int64 {
	now := n.clock()
	if n.world.tick > 0 {
		for _, last := range n.last {
			now = max(now, last)
		}
	}
	return now
}

// runs reports whether the node has a daemon that gets CPU time.
func (n *Node) runs() bool { return n.Daemon != nil && !n.frozen && n.suspendedAt == 0 }

// Put simulates an update by the load balancer. It returns false if the map has no room. seen means that
// the hook reports the update; jitter is the error of the hook's clock in ns. An LRU map without room
// evicts another entry first.
func (n *Node) Put(key int, v Value, cpu uint16, ctx table.Context, seen bool, jitter int64) bool {
	if !n.Map.entries[key].live && n.room > 0 && n.Map.n >= n.room {
		if !n.lru {
			return false
		}
		n.evict(key, cpu, ctx, seen, jitter)
	}
	n.changed(key)
	n.Map.set(key, v)
	n.Map.entries[key].timerSince = n.world.Now
	v[timerByte] = 0 // it is set up after the update
	reported := seen && n.emit(event{key: key, value: v, cpu: cpu, op: table.OpUpdate, ctx: ctx}, jitter)
	if n.world.Model != nil {
		n.world.Model.wrote(n, key, v, false, reported)
	}
	return true
}

// Remove simulates a delete by the load balancer. It returns false if the map does not have the key.
func (n *Node) Remove(key int, cpu uint16, ctx table.Context, seen bool, jitter int64) bool {
	if !n.Map.entries[key].live {
		return false
	}
	n.changed(key)
	n.Map.drop(key)
	reported := seen && n.emit(event{key: key, cpu: cpu, op: table.OpDelete, ctx: ctx}, jitter)
	if m := n.world.Model; m != nil && !n.clearing && !m.keptByDrain(n, key, ctx, reported) {
		n.world.Model.wrote(n, key, Value{}, true, reported)
	}
	return true
}

// evict evicts the least recently written entry, to make room for a key. The map must have another
// entry. -1: any entry.
func (n *Node) evict(key int, cpu uint16, ctx table.Context, seen bool, jitter int64) {
	victim := -1
	for k := range n.Map.entries {
		if e := &n.Map.entries[k]; e.live && k != key && (victim < 0 || e.used < n.Map.entries[victim].used) {
			victim = k
		}
	}
	n.Map.drop(victim)
	n.Map.entries[victim].evicted = true
	if n.world.Model != nil {
		n.world.Model.evicted(n, victim)
	}
	if seen && !n.evictionsUnseen {
		n.emit(event{key: victim, cpu: cpu, op: table.OpEvict, ctx: ctx}, jitter)
	}
}

// emit passes an event to the hooks of the daemon. It reports whether the hooks observe the map. It
// assigns the time. The events of one CPU have ascending times, whatever the error.
func (n *Node) emit(e event, jitter int64) bool {
	e.mapID = n.Map.ID
	e.time = max(n.last[e.cpu]+1, n.clock()+jitter)
	n.last[e.cpu] = e.time
	d := n.Daemon
	if d == nil || d.m != n.Map {
		return false
	}
	if len(d.queue[e.cpu]) >= bufferSize && n.world.scans {
		return false // the event is lost, and a scan must find the change
	}
	d.queue[e.cpu] = append(d.queue[e.cpu], e)
	return true
}

// bufferSize is the number of events per CPU that can be queued. Further events are lost.
const bufferSize = 64

// set writes an entry, which then is the most recently used one.
func (m *Map) set(key int, v Value) {
	e := &m.entries[key]
	if !e.live {
		m.n++
	}
	m.clock++
	*e = entry{live: true, value: v, used: m.clock, evicted: e.evicted}
}

// drop deletes an entry, if there is one.
func (m *Map) drop(key int) {
	if m.entries[key].live {
		m.n--
	}
	m.entries[key] = entry{evicted: m.entries[key].evicted}
}

// NodeNames returns names of nodes in ascending order.
func NodeNames(n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = string(rune('a' + i))
	}
	return all
}
