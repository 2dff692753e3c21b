package tabletest

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"mapsync/syncd/table"
)

// Script runs the events of one scenario on a world. Its events are the keys of scriptCommands.
//
// Each event takes 1 ms of simulated time and does only what its name states: nothing is written, sent or
// read in the background. A file shows the outcome of each event, so a change of a rule shows as a
// difference.
type Script struct {
	t          *testing.T   // of the current event
	internals  Internals    // creates and checks the tables
	world      *World       // nil before "nodes"
	out        bytes.Buffer // the outcome of the current event
	lateEvents []event      // events that have not arrived yet
	// handovers has what drained nodes have handed over, also across their restarts.
	handovers map[string]table.Handover
}

// scriptCommands are the events of the scenarios. Those above the empty line concern the cluster. Those
// below concern the node whose name comes first.
var scriptCommands = map[string]func(s *Script, n *Node, args []string){
	"nodes":    (*Script).nodes,    // names...: bring up nodes with an empty map
	"sleep":    (*Script).sleep,    // duration
	"sync":     (*Script).sync,     // from to [limit]: carry records over a stream
	"converge": (*Script).converge, // run everything until all nodes are equal

	"clock":   (*Script).clock,   // duration: how far the node's clock is ahead
	"update":  (*Script).update,  // key value [context] [cpu]: a write and its event
	"delete":  (*Script).delete,  // key [context] [cpu]
	"silent":  (*Script).silent,  // key [value]: a write without an event
	"late":    (*Script).late,    // key [value]: a write whose event is delayed
	"events":  (*Script).events,  // deliver the delayed events
	"write":   (*Script).write,   // the writer writes all dirty records
	"take":    (*Script).take,    // the writer takes all dirty records
	"put":     (*Script).put,     // the writer writes the records that it took
	"report":  (*Script).report,  // [error]: the writer reports its writes
	"requeue": (*Script).requeue, // retry failed writes
	"reread":  (*Script).reread,  // read the keys with pending rereads
	"scan":    (*Script).scan,    // read the whole map
	"adopt":   (*Script).adopt,   // adopt the loaded entries
	"drain":   (*Script).drain,   // hand the records over, which all nodes receive
	"undrain": (*Script).undrain, // end the handover and let the writer restore entries
	"crash":   (*Script).crash,
	"restart": (*Script).restart, // [new]: a new incarnation, optionally with a new map
	"expire":  (*Script).expire,  // duration: pass the time and expire tombstones
	"show":    (*Script).show,    // the table in its order, and the kernel map
}

// NewScript returns a script without nodes. The first event must be "nodes". A script runs one file.
func NewScript(in Internals) *Script { return &Script{internals: in} }

// Run executes one event and returns its outcome, "ok" if there is none. It checks the invariants of all
// tables afterwards. An unknown event fails the test.
func (s *Script) Run(t *testing.T, d *datadriven.TestData) string {
	s.t = t
	s.out.Reset()
	event := []string{d.Cmd}
	for _, arg := range d.CmdArgs {
		event = append(event, arg.String())
	}
	if d.Input != "" {
		d.Fatalf(t, "got more than one line of input: %q", d.Input)
	}
	var n *Node
	// Versions show this time: v3 is a change 3 ms after the start.
	if s.world != nil {
		s.world.Now += int64(time.Millisecond)
		if n = s.node(event[0]); n != nil {
			event = event[1:]
		}
	}
	if len(event) == 0 || scriptCommands[event[0]] == nil {
		d.Fatalf(t, "unknown event %q", event)
	}
	scriptCommands[event[0]](s, n, event[1:])
	for _, n := range s.world.Up() {
		n.Daemon.internals().Check(t, n.Daemon.tab)
	}
	if s.out.Len() == 0 {
		return "ok"
	}
	return s.out.String()
}

// printf adds a line to the outcome of the current event.
func (s *Script) printf(format string, args ...any) { fmt.Fprintf(&s.out, format+"\n", args...) }

// nodes starts nodes that are ready, so a file need not show their start.
func (s *Script) nodes(_ *Node, args []string) {
	s.world = NewWorld(s.t, NewTables(s.internals), args...)
	s.world.trace = func(format string, args ...any) {
		for i, a := range args {
			if v, ok := a.(table.Version); ok {
				args[i] = versionText(v)
			}
		}
		// A record without a value leaves two blanks, which are reduced to one.
		s.printf("%s", strings.Join(strings.Fields(fmt.Sprintf(strings.ReplaceAll(format, "v%d", "%s"), args...)), " "))
	}
	for _, n := range s.world.Nodes {
		n.Start()
		n.Daemon.LoadAll()
		n.Daemon.state = stateReplicating
	}
	s.world.UpdateViews()
}

// node returns the node with the given name, nil if there is none.
func (s *Script) node(name string) *Node {
	if i := s.world.node(name); i >= 0 {
		return s.world.Nodes[i]
	}
	return nil
}

// versionText returns a version in milliseconds since the start, with a remainder in nanoseconds.
func versionText(v table.Version) string {
	if v == table.AdoptedVersion {
		return "vadopted"
	}
	if v == 0 {
		return "v0"
	}
	d := int64(v) - startTime
	text := "v" + strconv.FormatInt(d/1e6, 10)
	if ns := d % 1e6; ns != 0 {
		text += fmt.Sprintf("%+d", ns)
	}
	return text
}

// sleep passes time in which nothing happens.
func (s *Script) sleep(_ *Node, args []string) { s.world.Now += s.duration(args[0]) }

// duration returns a duration in nanoseconds. A malformed one fails the test.
func (s *Script) duration(text string) int64 {
	d, err := time.ParseDuration(text)
	if err != nil {
		s.t.Fatal(err)
	}
	return int64(d)
}

// sync carries the pending records of one stream, in batches of limit records.
func (s *Script) sync(_ *Node, args []string) {
	limit := 1 << 20
	if len(args) > 2 {
		limit, _ = strconv.Atoi(args[2])
	}
	before := s.out.Len()
	from, to := s.node(args[0]), s.node(args[1])
	if to.Daemon != nil && to.Daemon.Inbound[from.ID] != nil {
		to.Daemon.Inbound[from.ID].Pump(limit)
	}
	if s.out.Len() == before {
		s.printf("%s > %s: nothing", args[0], args[1])
	}
}

// converge runs the cluster to its final state. It also scans the maps, as a cluster does in time. The
// steps are not printed.
func (s *Script) converge(*Node, []string) {
	trace := s.world.trace
	s.world.trace, s.world.scans = nil, true
	if err := s.world.Converge(); err != nil {
		s.t.Errorf("converge: %v", err)
	}
	s.world.trace = trace
}

// clock sets the clock of a node, also while its daemon runs.
func (s *Script) clock(n *Node, args []string) { n.Offset = s.duration(args[0]) }

// change makes a write, with the context and CPU if they are given. It takes the event of the write from
// the queue and returns it. It returns nil if there is none, because the daemon is down or the map is
// not attached.
func (s *Script) change(n *Node, key, value string, deleted bool, rest []string) *event {
	ctx, cpu := table.ContextPacket, uint64(0)
	if len(rest) > 0 {
		ctx = s.context(rest[0])
	}
	if len(rest) > 1 {
		cpu, _ = strconv.ParseUint(rest[1], 10, 16)
	}
	k := s.world.Key(padded(key))
	if deleted {
		n.Remove(k, uint16(cpu), ctx, true, 0)
	} else {
		n.Put(k, Value(padded(value)), uint16(cpu), ctx, true, 0)
	}
	if n.Daemon == nil || len(n.Daemon.queue[cpu]) == 0 {
		return nil
	}
	q := n.Daemon.queue[cpu]
	n.Daemon.queue[cpu] = q[:len(q)-1]
	return &q[len(q)-1]
}

// context returns the context with a name.
func (s *Script) context(name string) table.Context {
	for c := table.ContextPacket; c <= table.ContextReread; c++ {
		if c.String() == name {
			return c
		}
	}
	s.t.Fatalf("unknown context %q", name)
	return 0
}

// update makes a write and delivers its event at once.
func (s *Script) update(n *Node, args []string) {
	if e := s.change(n, args[0], args[1], false, args[2:]); e != nil {
		n.Daemon.event(e)
	}
}

// delete makes a delete and delivers its event at once.
func (s *Script) delete(n *Node, args []string) {
	if e := s.change(n, args[0], "", true, args[1:]); e != nil {
		n.Daemon.event(e)
	}
}

// changeWithoutDelivery makes a write, or a delete if the value is missing. The caller decides about its
// event.
func (s *Script) changeWithoutDelivery(n *Node, args []string) *event {
	if len(args) == 1 {
		return s.change(n, args[0], "", true, nil)
	}
	return s.change(n, args[0], args[1], false, nil)
}

// silent loses the event. Only a scan or a reread finds the change.
func (s *Script) silent(n *Node, args []string) { s.changeWithoutDelivery(n, args) }

// late keeps the event, with the time of the write, for "events".
func (s *Script) late(n *Node, args []string) {
	if e := s.changeWithoutDelivery(n, args); e != nil {
		s.lateEvents = append(s.lateEvents, *e)
	}
}

// events delivers the delayed events in the order of the writes. Other events may have passed them.
func (s *Script) events(n *Node, _ []string) {
	for _, e := range s.lateEvents {
		n.Daemon.event(&e)
	}
	s.lateEvents = nil
}

// write is "take", "put" and "report" in one event.
func (s *Script) write(n *Node, _ []string) {
	n.Daemon.take(1 << 20)
	n.Daemon.report(nil)
}

// take begins a pass of the writer: take, put and report divide its work, so that a file can place
// changes in between.
func (s *Script) take(n *Node, _ []string) { n.Daemon.take(1 << 20) }

// put writes the records as they were taken, even if they have changed since.
func (s *Script) put(n *Node, _ []string) { n.Daemon.write(1 << 20) }

// report reports the writes of the last "put". With an error, it reports that all of them failed.
func (s *Script) report(n *Node, args []string) {
	if len(args) == 0 {
		n.Daemon.report(nil)
	} else {
		n.Daemon.report(fmt.Errorf("%s", args[0]))
	}
}

// requeue makes failed records dirty again. "write" then retries them.
func (s *Script) requeue(n *Node, _ []string) {
	n.Daemon.tab.Update(func(tx *table.Tx) { s.printf("%s tries %d again", n.Name, tx.RequeueFailed(1<<20)) })
}

// reread does the three phases of a reread at once.
func (s *Script) reread(n *Node, _ []string) {
	n.Daemon.takeRereads(64)
	if len(n.Daemon.keys) == 0 {
		s.printf("%s: nothing to read", n.Name)
	}
	n.Daemon.readKeys()
	n.Daemon.reportReads()
}

// scan compares the map with the table, and enters rereads that were read before.
func (s *Script) scan(n *Node, _ []string) {
	n.Daemon.scan()
	n.Daemon.reportReads()
}

// adopt prints whether the entries are adopted, which needs the records of all live peers or a timeout.
func (s *Script) adopt(n *Node, _ []string) { s.printf("%s adopts: %v", n.Name, n.Daemon.Adopt()) }

// crash ends the daemon. All other nodes detect it at once, and the kernel map stays.
func (s *Script) crash(n *Node, _ []string) {
	n.Stop()
	s.world.UpdateViews()
}

// restart begins a new incarnation. The state file names the former map, so a map that stays is
// recognised.
func (s *Script) restart(n *Node, args []string) {
	n.StateFileMap = n.Map.ID
	if slices.Contains(args, "new") {
		n.Map = s.world.NewMap()
	}
	n.Start()
	n.Daemon.LoadAll()
	s.announce(n)
	s.world.UpdateViews()
}

// expire prints the floor afterwards. A peer that resumes below it needs a full sync.
func (s *Script) expire(n *Node, args []string) {
	s.world.Now += s.duration(args[0])
	n.Daemon.tab.Update(func(tx *table.Tx) {
		for tx.Expire(n.clock(), 1) {
		}
		s.printf("%s: floor %d of %d", n.Name, tx.Floor(), tx.Head())
	})
}

// show prints the records in their order, then those without a version, then the kernel map.
func (s *Script) show(n *Node, _ []string) {
	t := n.Daemon.tab
	c := t.NewCursor(0)
	defer c.Close()
	t.View(func(tx *table.Tx) {
		var r table.Record
		for tx.Next(c, &r) {
			s.printf("%s %4d  %s", n.Name, r.Position, s.record(n, tx, &r))
		}
		for k := range s.world.keys {
			if tx.Get(s.world.keys[k][:], &r) && r.Version == 0 {
				s.printf("%s       %s", n.Name, s.record(n, tx, &r))
			}
		}
	})
	var all []string
	for k := range n.Map.entries {
		if e := &n.Map.entries[k]; e.live {
			all = append(all, s.world.name(k)+"="+trimmed(e.value[:]))
		}
	}
	slices.Sort(all)
	s.printf("%s", strings.TrimSpace(n.Name+" kernel "+strings.Join(all, " ")))
}

// record returns a record as one line.
func (s *Script) record(n *Node, tx *table.Tx, r *table.Record) string {
	value := trimmed(r.Value)
	if r.Delete {
		value = "-"
	}
	o := tx.Owner(r.Owner)
	owner := o.Node
	if o.Node == n.Name && o != n.Daemon.self {
		owner += " (earlier)"
	}
	line := fmt.Sprintf("%s %s %s %s", trimmed(r.Key), value, versionText(r.Version), owner)
	if r.Dirty {
		line += " dirty"
	}
	return line
}
