package table

import "strings"

// sim is a cluster of load balancers that write kernel maps. It simulates the work of the daemon
// around the table of each node in small steps. A script or a random run can interleave the steps in
// any way. Time is simulated, and nothing depends on the order of a Go map: the same steps have the
// same result.
type sim struct {
	tb    interface{ Fatal(...any) }
	now   int64
	nodes []*simNode // in ascending order of their names
	keys  []entryKey
	index map[entryKey]int
	// cuts[i][j]: no message gets from node i to node j.
	cuts      [][]bool
	tick      int64 // granularity of all clocks in ns, if above 1 ns
	scans     bool  // maps are scanned before the cluster counts as idle
	blind     bool  // hooks are unavailable
	keysOnly  bool  // hooks report which key was updated, also by the daemon, without the value
	moves     int   // number of changes so far: the cluster is idle if it does not grow
	mapIDs    int
	tables    *simTables
	model     *simModel                                   // computes the expected state; nil in scripts
	trace     func(format string, args ...any)            // receives the outcomes of changes; nil: unused
	notes     func(format string, args ...any)            // receives other events; nil: unused
	onReceive func(st *simStream, d *simDelta, o Outcome) // called for each record of a stream; nil: unused
	err       error                                       // the first error
	repaired  int                                         // number of records that comparisons repaired
	compacted int                                         // number of compacted tombstones
	// forgotten: a table that is gone had forgotten a tombstone.
	forgotten bool
	// defended: a stranger's record did not replace another record, so the nodes must compare.
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

// simNode is a host: a load balancer with its map, and a daemon, which may be down.
type simNode struct {
	sim                *sim
	id                 int
	name               string
	offset             int64 // of the node's clock in ns
	opt                Options
	room               int  // maximum number of entries of its maps; 0: unlimited
	lru                bool // its maps evict entries
	forgetAcknowledged bool // its table forgets acknowledged tombstones
	burst              int  // maximum number of records that the writer takes at a time

	lb           *simMap
	hidden       bool // the daemon cannot open the map
	stateFileMap int  // id of the map that the state file names
	last         [simCPUs]int64
	frozen       bool        // the daemon gets no CPU time
	faulty       func() bool // returns true if a write into the map fails with "no memory"; nil: never
	d            *simDaemon
	incarnations int // number of incarnations of its daemon
}

// simMap is a kernel map.
type simMap struct {
	id      int
	entries []simEntry // by key
	n       int
	clock   int // number of uses so far
}

type simEntry struct {
	live    bool
	evicted bool // the entry was evicted at some time
	value   entryValue
	used    int
}

// simEvent is an event of a hook.
type simEvent struct {
	mapID int
	key   int
	value entryValue
	time  int64
	cpu   uint16
	op    Op
	ctx   Context
}

func newSim(tb interface{ Fatal(...any) }, tables *simTables, names ...string) *sim {
	s := &sim{tb: tb, tables: tables, now: simStart, index: make(map[entryKey]int)}
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

// open reports whether two nodes can communicate.
func (s *sim) open(i, j int) bool { return !s.cuts[i][j] && !s.cuts[j][i] }

// fail records the first error.
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

// readClock returns the time before a read of the map. With a coarse clock, the times of events have a
// finer resolution than the clock. Events that come before the read still have earlier times.
func (n *simNode) readClock() int64 {
	now := n.clock()
	if n.sim.tick > 0 {
		for _, last := range n.last {
			now = max(now, last)
		}
	}
	return now
}

// runs reports whether the node has a daemon that gets CPU time.
func (n *simNode) runs() bool { return n.d != nil && !n.frozen }

// put simulates an update by the load balancer. It returns false if the map has no room. seen means
// that the hook reports the update; jitter is the error of the hook's clock in ns.
func (n *simNode) put(key int, v entryValue, cpu uint16, ctx Context, seen bool, jitter int64) bool {
	if !n.lb.entries[key].live && n.room > 0 && n.lb.n >= n.room {
		if !n.lru {
			return false
		}
		n.evict(key, cpu, ctx, seen, jitter)
	}
	n.lb.set(key, v)
	reported := seen && n.emit(simEvent{key: key, value: v, cpu: cpu, op: OpUpdate, ctx: ctx}, jitter)
	if n.sim.model != nil {
		n.sim.model.wrote(n, key, v, false, reported)
	}
	return true
}

// remove simulates a delete by the load balancer.
func (n *simNode) remove(key int, cpu uint16, ctx Context, seen bool, jitter int64) bool {
	if !n.lb.entries[key].live {
		return false
	}
	n.lb.drop(key)
	reported := seen && n.emit(simEvent{key: key, cpu: cpu, op: OpDelete, ctx: ctx}, jitter)
	if n.sim.model != nil {
		n.sim.model.wrote(n, key, entryValue{}, true, reported)
	}
	return true
}

// evict evicts the least recently written entry, to make room for a key.
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

// emit passes an event to the hooks of the daemon. It reports whether the hooks observe the map.
func (n *simNode) emit(e simEvent, jitter int64) bool {
	e.mapID = n.lb.id
	e.time = max(n.last[e.cpu]+1, n.clock()+jitter)
	n.last[e.cpu] = e.time
	d := n.d
	if d == nil || d.m != n.lb {
		return false
	}
	if len(d.queue[e.cpu]) >= simBuffer && n.sim.scans {
		return false // the event is lost, and a scan must find the change
	}
	d.queue[e.cpu] = append(d.queue[e.cpu], e)
	return true
}

// simBuffer is the number of events per CPU that can be queued. Further events are lost.
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
