package table

import "strings"

// sim is a cluster: load balancers that write kernel maps, and around a table on each
// node what the daemon does, one small step at a time, so that a script or a random
// run can interleave the steps in any way. Time is simulated, and nothing depends on
// the order of a Go map: the same steps bring the same end.
type sim struct {
	tb    interface{ Fatal(...any) }
	now   int64
	nodes []*simNode // in the order of their names
	keys  []entryKey
	index map[entryKey]int
	// cuts[i][j]: nothing gets from node i to node j.
	cuts      [][]bool
	tick      int64 // of all clocks, if that is more than a nanosecond
	scans     bool  // maps are scanned before all is called quiet
	blind     bool  // no hooks
	keysOnly  bool  // hooks tell which key was updated, by the daemon too, and not to what
	moves     int   // counts what moved: when nothing does it is quiet
	mapIDs    int
	tables    *simTables
	model     *simModel                                   // what must come of it; nil in scripts
	trace     func(format string, args ...any)            // what becomes of changes; nil: not wanted
	notes     func(format string, args ...any)            // what else happens; nil: not wanted
	told      func(st *simStream, d *simDelta, o Outcome) // each record that a stream brought; nil: not wanted
	err       error                                       // the first thing that must not be
	repaired  int                                         // records that comparing put right
	compacted int                                         // tombstones
	// forgotten: a tombstone, by a table that is gone.
	forgotten bool
	// defended: a stranger's record did not replace another: nodes have to compare.
	defended bool
}

type (
	entryKey   [simKey]byte
	entryValue [simValue]byte
)

const (
	simKey   = 8
	simValue = 8
	simCPUs  = 3
	simStart = int64(1_000_000_000_000_000)
)

// simNode is a host: a load balancer with its map, and a daemon, or none just now.
type simNode struct {
	sim    *sim
	id     int
	name   string
	offset int64 // of its clock
	opt    Options
	room   int  // entries that its maps have room for; 0: enough
	lru    bool // its maps evict
	early  bool // its table forgets acknowledged tombstones
	burst  int  // records that the writer takes at a time

	lb     *simMap
	hidden bool // the daemon cannot see the map
	noted  int  // the map that the state file names
	last   [simCPUs]int64
	frozen bool        // the daemon gets no processor
	faulty func() bool // a write into the map is refused for want of memory; nil: never
	d      *simDaemon
	lives  int // of its daemon
}

// simMap is a kernel map.
type simMap struct {
	id      int
	entries []simEntry // by key
	n       int
	clock   int // of uses
}

type simEntry struct {
	live    bool
	evicted bool // it was, at some time
	value   entryValue
	used    int
}

// simEvent is what a hook tells.
type simEvent struct {
	mapID int
	key   int
	value entryValue
	time  int64
	cpu   uint16
	op    Op
	ctx   Context
}

func newSim(tb interface{ Fatal(...any) }, names ...string) *sim {
	s := &sim{tb: tb, now: simStart, index: make(map[entryKey]int)}
	for i, name := range names {
		n := &simNode{sim: s, id: i, name: name, burst: 1 << 20}
		n.lb = s.newMap()
		s.nodes = append(s.nodes, n)
		s.cuts = append(s.cuts, make([]bool, len(names)))
	}
	return s
}

func (s *sim) newMap() *simMap {
	s.mapIDs++
	return &simMap{id: s.mapIDs, entries: make([]simEntry, len(s.keys))}
}

// key returns the number of a key.
func (s *sim) key(b []byte) int {
	k := entryKey(b)
	i, ok := s.index[k]
	if !ok {
		i = len(s.keys)
		s.keys = append(s.keys, k)
		s.index[k] = i
		for _, n := range s.nodes {
			n.lb.entries = append(n.lb.entries, simEntry{})
		}
	}
	return i
}

func (s *sim) name(key int) string { return text(s.keys[key][:]) }

// open reports whether two nodes can talk to each other.
func (s *sim) open(i, j int) bool { return !s.cuts[i][j] && !s.cuts[j][i] }

// fail notes the first thing that must not be.
func (s *sim) fail(err error) {
	if s.err == nil {
		s.err = err
	}
}

func pad(s string, n int) []byte {
	b := make([]byte, n)
	copy(b, s)
	return b
}

func text(b []byte) string { return strings.TrimRight(string(b), "\x00") }

func (n *simNode) clock() int64 {
	now := n.sim.now + n.offset
	return now - now%max(n.sim.tick, 1)
}

// readClock is the clock before a read of the map. Where it is coarse, events are told apart
// by more than it shows, and what they tell of came before the read nevertheless.
func (n *simNode) readClock() int64 {
	now := n.clock()
	if n.sim.tick > 0 {
		for _, last := range n.last {
			now = max(now, last)
		}
	}
	return now
}

// runs reports whether the node has a daemon that gets a processor.
func (n *simNode) runs() bool { return n.d != nil && !n.frozen }

// put is an update by the load balancer: it returns false if the map has no room.
// seen says that the hook sees it; jitter is what the hook's clock is off by.
func (n *simNode) put(key int, v entryValue, cpu uint16, ctx Context, seen bool, jitter int64) bool {
	if !n.lb.entries[key].live && n.room > 0 && n.lb.n >= n.room {
		if !n.lru {
			return false
		}
		n.evict(key, cpu, ctx, seen, jitter)
	}
	n.lb.set(key, v)
	known := seen && n.emit(simEvent{key: key, value: v, cpu: cpu, op: OpUpdate, ctx: ctx}, jitter)
	if n.sim.model != nil {
		n.sim.model.wrote(n, key, v, false, known)
	}
	return true
}

// remove is a delete by the load balancer.
func (n *simNode) remove(key int, cpu uint16, ctx Context, seen bool, jitter int64) bool {
	if !n.lb.entries[key].live {
		return false
	}
	n.lb.drop(key)
	known := seen && n.emit(simEvent{key: key, cpu: cpu, op: OpDelete, ctx: ctx}, jitter)
	if n.sim.model != nil {
		n.sim.model.wrote(n, key, entryValue{}, true, known)
	}
	return true
}

// evict throws out the entry that was written least recently, to make room for a key.
func (n *simNode) evict(key int, cpu uint16, ctx Context, seen bool, jitter int64) {
	victim := -1
	for k := range n.lb.entries {
		if e := &n.lb.entries[k]; e.live && k != key && (victim < 0 || e.used < n.lb.entries[victim].used) {
			victim = k
		}
	}
	n.lb.drop(victim)
	n.lb.entries[victim].evicted = true
	if n.sim.model != nil {
		n.sim.model.evicted(n, victim)
	}
	if seen {
		n.emit(simEvent{key: victim, cpu: cpu, op: OpEvict, ctx: ctx}, jitter)
	}
}

// emit hands an event to the daemon's hooks, and reports whether they watch the map.
func (n *simNode) emit(e simEvent, jitter int64) bool {
	e.mapID = n.lb.id
	e.time = max(n.last[e.cpu]+1, n.clock()+jitter)
	n.last[e.cpu] = e.time
	d := n.d
	if d == nil || d.m != n.lb {
		return false
	}
	if len(d.queue[e.cpu]) >= simBuffer && n.sim.scans {
		return false // lost, and the scan's to find
	}
	d.queue[e.cpu] = append(d.queue[e.cpu], e)
	return true
}

// simBuffer is how many events of a CPU wait before more are lost.
const simBuffer = 64

func (m *simMap) set(key int, v entryValue) {
	e := &m.entries[key]
	if !e.live {
		m.n++
	}
	m.clock++
	*e = simEntry{live: true, value: v, used: m.clock, evicted: e.evicted}
}

func (m *simMap) drop(key int) {
	if m.entries[key].live {
		m.n--
	}
	m.entries[key] = simEntry{evicted: m.entries[key].evicted}
}
