package table

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// sim is a cluster of tables with a kernel map each, on one simulated clock. It
// does what the daemon does around a table (events, writer, rereads, scans,
// streams, restarts) one small step at a time, so that a script or a property
// test can interleave the steps in any way.
type sim struct {
	tb      interface{ Fatal(...any) }
	now     int64
	names   []string
	nodes   map[string]*simNode
	streams map[link]*simStream
	scans   bool // scan the maps before all is called quiet
	trace   func(format string, args ...any)
}

type link struct{ from, to string }

type simNode struct {
	sim    *sim
	name   string
	offset int64 // of its clock
	up     bool
	seen   bool // has been up
	opt    Options
	self   Owner
	tab    *Table
	claims bool // has claimed what it loaded

	kernel map[string]string
	last   []int64     // time of the last event of each CPU
	events [][]*Change // of each CPU, in order

	writer *Cursor
	batch  []simWrite
	keys   []byte // taken for rereading
	reads  []*Change

	scanning bool
	places   []string // that the scan still has to pass
	scanned  []*Change
}

type simWrite struct {
	key, value string
	dead, done bool
	ref        Ref
	version    Version
}

const (
	simKey   = 8
	simValue = 8
	simCPUs  = 3
	simStart = int64(1_000_000_000_000)
)

func newSim(tb interface{ Fatal(...any) }, names ...string) *sim {
	s := &sim{tb: tb, now: simStart, names: names, trace: func(string, ...any) {}}
	s.nodes = make(map[string]*simNode)
	s.streams = make(map[link]*simStream)
	for _, name := range names {
		s.nodes[name] = &simNode{sim: s, name: name, kernel: make(map[string]string)}
	}
	return s
}

func pad(s string, n int) []byte {
	b := make([]byte, n)
	copy(b, s)
	return b
}

func text(b []byte) string { return strings.TrimRight(string(b), "\x00") }

func (n *simNode) clock() int64 { return n.sim.now + n.offset }

// start brings a node up as a new incarnation: what its map holds is loaded.
func (n *simNode) start(sameMap bool) {
	n.self = Owner{n.name, uint64(n.clock())}
	n.opt.Self, n.opt.KeySize, n.opt.ValueSize = n.self, simKey, simValue
	n.opt.SameMap, n.opt.Seed = sameMap, 1
	tab, err := New(n.opt)
	if err != nil {
		n.sim.tb.Fatal(err)
	}
	n.tab, n.up, n.seen, n.claims = tab, true, true, false
	n.last, n.events = make([]int64, simCPUs), make([][]*Change, simCPUs)
	n.writer, n.batch, n.keys, n.reads = tab.NewCursor(0), nil, nil, nil
	n.scanning = false
	n.tab.Update(func(tx *Tx) {
		for _, k := range slices.Sorted(maps.Keys(n.kernel)) {
			tx.Load(pad(k, simKey), pad(n.kernel[k], simValue))
		}
	})
	n.sim.membership()
}

// stop takes a node down without a word. Its kernel map stays.
func (n *simNode) stop() {
	n.up = false
	n.sim.membership()
}

// touch is a write by the load balancer. It returns the event, or nil if the
// hook is not to see it or the map refused.
func (n *simNode) touch(key, value string, dead bool, cpu uint16, ctx Context, jitter int64) *Change {
	if _, ok := n.kernel[key]; dead && !ok {
		return nil
	}
	c := &Change{Key: pad(key, simKey), CPU: cpu, Context: ctx}
	if dead {
		delete(n.kernel, key)
		c.Op = OpDelete
	} else {
		n.kernel[key] = value
		c.Value = pad(value, simValue)
	}
	if !n.up {
		return nil
	}
	c.Time = max(n.last[cpu]+1, n.clock()+jitter)
	n.last[cpu] = c.Time
	return c
}

// deliver hands the oldest event of one CPU to the table.
func (n *simNode) deliver(cpu int) {
	if len(n.events[cpu]) == 0 {
		return
	}
	c := n.events[cpu][0]
	n.events[cpu] = n.events[cpu][1:]
	n.local(c)
}

func (n *simNode) local(c *Change) (o Outcome) {
	n.tab.Update(func(tx *Tx) { o = tx.Local(c) })
	n.sim.trace("%s %s %s %s by %s: %s", n.name, c.Op, text(c.Key), text(c.Value), c.Context, o)
	return o
}

// take lets the writer take up to limit records.
func (n *simNode) take(limit int) {
	n.tab.Update(func(tx *Tx) {
		var r Record
		for len(n.batch) < limit && tx.NextDirty(n.writer, &r) {
			n.batch = append(n.batch, simWrite{
				key: text(r.Key), value: text(r.Value),
				dead: r.Delete, ref: r.Ref, version: r.Version,
			})
		}
	})
}

// write writes up to limit of the records taken to the kernel map.
func (n *simNode) write(limit int) {
	for i := range n.batch {
		w := &n.batch[i]
		if w.done || limit == 0 {
			continue
		}
		limit--
		w.done = true
		if w.dead {
			delete(n.kernel, w.key)
			n.sim.trace("%s writes %s: delete", n.name, w.key)
		} else {
			n.kernel[w.key] = w.value
			n.sim.trace("%s writes %s %s", n.name, w.key, w.value)
		}
	}
}

// report tells the table what was written, writing first what is not.
func (n *simNode) report(err error) {
	if err == nil {
		n.write(len(n.batch))
	}
	n.tab.Update(func(tx *Tx) {
		for _, w := range n.batch {
			tx.Applied(w.ref, w.version, err)
		}
		tx.SetApplied(n.writer.Position())
	})
	n.batch = n.batch[:0]
}

// takeRechecks takes keys to be read, read reads them, answer reports them.
func (n *simNode) takeRechecks(limit int) {
	buf := make([]byte, limit*simKey)
	n.tab.Update(func(tx *Tx) { n.keys = append(n.keys, buf[:simKey*tx.TakeRechecks(buf)]...) })
}

func (n *simNode) read() {
	for k := range slices.Chunk(n.keys, simKey) {
		n.reads = append(n.reads, n.reread(text(k)))
	}
	n.keys = nil
}

func (n *simNode) reread(key string) *Change {
	c := &Change{Key: pad(key, simKey), Op: OpDelete, Context: ContextReread, Time: n.clock()}
	if v, ok := n.kernel[key]; ok {
		c.Op, c.Value = OpUpdate, pad(v, simValue)
	}
	return c
}

func (n *simNode) answer() {
	reads := n.reads
	n.reads = nil
	for _, c := range reads {
		n.local(c)
	}
}

// scan reads the whole map against the table.
func (n *simNode) scan() {
	n.scanning = false
	n.scanSome(1 << 20)
	n.scanOn()
}

// scanSome reads some more entries of the scan under way, or of a new one. A key that
// comes when its place was passed is not read.
func (n *simNode) scanSome(limit int) {
	if !n.scanning {
		n.scanning, n.scanned = true, nil
		n.places = slices.Sorted(maps.Keys(n.content()))
		for k := range n.kernel {
			if !slices.Contains(n.places, k) {
				n.places = append(n.places, k)
			}
		}
		slices.Sort(n.places)
		n.tab.Update(func(tx *Tx) { tx.BeginScan() })
	}
	for _, k := range n.places[:min(limit, len(n.places))] {
		if c := n.reread(k); c.Op == OpUpdate {
			n.scanned = append(n.scanned, c)
		}
	}
	n.places = n.places[min(limit, len(n.places)):]
}

// scanOn compares what was read, and after the last of it looks for what was not met.
func (n *simNode) scanOn() {
	if !n.scanning {
		return
	}
	n.tab.Update(func(tx *Tx) {
		for _, c := range n.scanned {
			found := tx.t.stats.ScanFound
			tx.ScannedAll(c.Time, c.Key, c.Value)
			n.sim.trace("%s scans %s %s, differs: %v", n.name, text(c.Key), text(c.Value), tx.t.stats.ScanFound > found)
		}
		n.scanned = nil
		for len(n.places) == 0 && n.scanning {
			n.scanning = tx.EndScan(2)
		}
	})
}

// simRecord is a record in a form that compares between nodes.
type simRecord struct {
	version Version
	owner   Owner
	dead    bool
	value   string
}

func (r simRecord) String() string {
	v := r.value
	if r.dead {
		v = "-"
	}
	return fmt.Sprintf("%s v%d %s", v, r.version, r.owner.Node)
}

// content returns all records of a node's table, unversioned ones included.
func (n *simNode) content() map[string]simRecord {
	all := make(map[string]simRecord)
	n.tab.View(func(tx *Tx) {
		for s := firstSlot; s < n.tab.allocated; s++ {
			m := n.tab.meta(s)
			if m.is(flagFree) {
				continue
			}
			r := simRecord{version: m.version, owner: tx.Owner(m.owner), dead: !m.live()}
			if !r.dead {
				r.value = text(n.tab.value(s))
			}
			all[text(n.tab.key(s))] = r
		}
	})
	return all
}

// converged returns the first difference between the nodes that are up, or
// between a node's table and its kernel map.
func (s *sim) converged() error {
	var first *simNode
	var want map[string]simRecord
	for _, name := range s.names {
		n := s.nodes[name]
		if !n.up {
			continue
		}
		got := n.content()
		for k, r := range got {
			v, ok := n.kernel[k]
			if ok == r.dead || v != r.value {
				return fmt.Errorf("%s: key %q is %v in the table and %q, %v in the kernel", name, k, r, v, ok)
			}
		}
		for k := range n.kernel {
			if _, ok := got[k]; !ok {
				return fmt.Errorf("%s: key %q is in the kernel only", name, k)
			}
		}
		if first == nil {
			first, want = n, got
			continue
		}
		for k := range want {
			if _, ok := got[k]; !ok && !n.forgets(want[k]) {
				return fmt.Errorf("key %q is %v on %s and unknown on %s", k, want[k], first.name, name)
			}
		}
		for k, r := range got {
			if w, ok := want[k]; w != r && (ok || !first.forgets(r)) {
				return fmt.Errorf("key %q is %v on %s and %v on %s", k, w, first.name, r, name)
			}
		}
	}
	return nil
}

// forgets reports whether a node may have forgotten a record.
func (n *simNode) forgets(r simRecord) bool { return r.dead && n.tab.floor > 0 }

// settle lets everything run until nothing moves any more.
func (s *sim) settle() error {
	var before string
	for range 40 {
		s.now += int64(5 * time.Millisecond)
		for _, name := range s.names {
			if n := s.nodes[name]; n.up {
				n.drain()
			}
		}
		s.syncAll()
		if now := s.digest(); now == before {
			return s.converged()
		} else {
			before = now
		}
	}
	return fmt.Errorf("still moving: %w", s.converged())
}

// drain delivers, writes, rereads and scans all there is on one node.
func (n *simNode) drain() {
	for cpu := range simCPUs {
		for len(n.events[cpu]) > 0 {
			n.deliver(cpu)
		}
	}
	n.report(nil)
	n.tab.Update(func(tx *Tx) { tx.RequeueFailed(1 << 20) })
	n.take(1 << 20)
	n.report(nil)
	n.sim.now += 10
	if n.sim.scans {
		n.scan()
	}
	n.answer()
	n.sim.now += 10
	n.takeRechecks(1 << 10)
	n.read()
	n.answer()
	n.take(1 << 20)
	n.report(nil)
	n.claim()
}

func (s *sim) digest() string {
	var b bytes.Buffer
	for _, name := range s.names {
		n := s.nodes[name]
		if !n.up {
			continue
		}
		all := n.content()
		for _, k := range slices.Sorted(maps.Keys(all)) {
			fmt.Fprintln(&b, name, k, all[k], n.kernel[k])
		}
		fmt.Fprintln(&b, n.claims)
		for _, from := range s.names {
			if st := s.streams[link{from, name}]; st != nil {
				fmt.Fprintln(&b, from, st.reset, st.cursor.Position())
			}
		}
	}
	return b.String()
}
