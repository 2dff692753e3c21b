package table

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

// TestScenarios runs the scenarios in testdata/scenarios. A scenario is a sequence of events. Each event
// is one line with the node, the event and its arguments. The outcome follows:
//
//	a update k v1
//	----
//	a update k v1 by packet: accepted
//
//	sync a b
//	----
//	a > b: k v1 v1000 a: accepted
//
// The events are the keys of scriptCommands. An event without an outcome prints "ok". The time passes by
// a millisecond with each event. Versions are printed as milliseconds since the start, followed by the
// remaining nanoseconds. To write the outcomes into the files:
//
//	go test ./syncd/table -run TestScenarios -rewrite
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata/scenarios", func(t *testing.T, path string) {
		s := &script{}
		datadriven.RunTest(t, path, s.run)
	})
}

// script is one scenario.
type script struct {
	*testing.T
	sim        *sim
	out        bytes.Buffer // the outcome of the current event
	lateEvents []simEvent   // events that have not arrived yet
}

// scriptCommands are the events of the scenarios. Those above the empty line concern the cluster. Those
// below concern the node whose name comes first.
var scriptCommands = map[string]func(s *script, n *simNode, args []string){
	"nodes":    (*script).nodes,    // names...: bring up nodes with an empty map
	"sleep":    (*script).sleep,    // duration
	"sync":     (*script).sync,     // from to [limit]: carry records over a stream
	"converge": (*script).converge, // run everything until all nodes are equal

	"clock":   (*script).clock,   // duration: how far the node's clock is ahead
	"update":  (*script).update,  // key value [context] [cpu]: a write and its event
	"delete":  (*script).delete,  // key [context] [cpu]
	"silent":  (*script).silent,  // key [value]: a write without an event
	"late":    (*script).late,    // key [value]: a write whose event is delayed
	"events":  (*script).events,  // deliver the delayed events
	"write":   (*script).write,   // the writer writes all dirty records
	"take":    (*script).take,    // the writer takes all dirty records
	"put":     (*script).put,     // the writer writes the records that it took
	"report":  (*script).report,  // [error]: the writer reports its writes
	"requeue": (*script).requeue, // retry failed writes
	"reread":  (*script).reread,  // read the keys with pending rereads
	"scan":    (*script).scan,    // read the whole map
	"adopt":   (*script).adopt,   // adopt the loaded entries
	"crash":   (*script).crash,
	"restart": (*script).restart, // [new]: a new incarnation, optionally with a new map
	"expire":  (*script).expire,  // duration: pass the time and expire tombstones
	"show":    (*script).show,    // the table in its order, and the kernel map
}

// run executes one event and returns its outcome.
func (s *script) run(t *testing.T, d *datadriven.TestData) string {
	s.T = t
	s.out.Reset()
	event := []string{d.Cmd}
	for _, arg := range d.CmdArgs {
		event = append(event, arg.String())
	}
	if d.Input != "" {
		d.Fatalf(t, "got more than one line of input: %q", d.Input)
	}
	var n *simNode
	if s.sim != nil {
		s.sim.now += int64(time.Millisecond)
		if n = s.node(event[0]); n != nil {
			event = event[1:]
		}
	}
	if len(event) == 0 || scriptCommands[event[0]] == nil {
		d.Fatalf(t, "unknown event %q", event)
	}
	scriptCommands[event[0]](s, n, event[1:])
	for _, n := range s.sim.up() {
		n.d.internals().Check(t, n.d.tab)
	}
	if s.out.Len() == 0 {
		return "ok"
	}
	return s.out.String()
}

func (s *script) printf(format string, args ...any) { fmt.Fprintf(&s.out, format+"\n", args...) }

func (s *script) nodes(_ *simNode, args []string) {
	s.sim = newSim(s, newTables(Internals{}), args...)
	s.sim.trace = func(format string, args ...any) {
		for i, a := range args {
			if v, ok := a.(Version); ok {
				args[i] = versionText(v)
			}
		}
		// A record without a value leaves two blanks, which are reduced to one.
		s.printf("%s", strings.Join(strings.Fields(fmt.Sprintf(strings.ReplaceAll(format, "v%d", "%s"), args...)), " "))
	}
	for _, n := range s.sim.nodes {
		n.start()
		n.d.loadAll()
		n.d.state = simReplicating
	}
	s.sim.updateViews()
}

// node returns the node with the given name, nil if there is none.
func (s *script) node(name string) *simNode {
	if i := s.sim.node(name); i >= 0 {
		return s.sim.nodes[i]
	}
	return nil
}

func versionText(v Version) string {
	if v == AdoptedVersion {
		return "vadopted"
	}
	if v == 0 {
		return "v0"
	}
	d := int64(v) - simStart
	text := "v" + strconv.FormatInt(d/1e6, 10)
	if ns := d % 1e6; ns != 0 {
		text += fmt.Sprintf("%+d", ns)
	}
	return text
}

func (s *script) sleep(_ *simNode, args []string) { s.sim.now += s.duration(args[0]) }

func (s *script) duration(text string) int64 {
	d, err := time.ParseDuration(text)
	if err != nil {
		s.Fatal(err)
	}
	return int64(d)
}

func (s *script) sync(_ *simNode, args []string) {
	limit := 1 << 20
	if len(args) > 2 {
		limit, _ = strconv.Atoi(args[2])
	}
	before := s.out.Len()
	from, to := s.node(args[0]), s.node(args[1])
	if to.d != nil && to.d.inbound[from.id] != nil {
		to.d.inbound[from.id].pump(limit)
	}
	if s.out.Len() == before {
		s.printf("%s > %s: nothing", args[0], args[1])
	}
}

func (s *script) converge(*simNode, []string) {
	trace := s.sim.trace
	s.sim.trace, s.sim.scans = nil, true
	if err := s.sim.converge(); err != nil {
		s.Errorf("converge: %v", err)
	}
	s.sim.trace = trace
}

func (s *script) clock(n *simNode, args []string) { n.offset = s.duration(args[0]) }

// change makes a write, with the context and CPU if they are given. It returns the event of the write,
// nil if there is none.
func (s *script) change(n *simNode, key, value string, deleted bool, rest []string) *simEvent {
	ctx, cpu := ContextPacket, uint64(0)
	if len(rest) > 0 {
		ctx = s.context(rest[0])
	}
	if len(rest) > 1 {
		cpu, _ = strconv.ParseUint(rest[1], 10, 16)
	}
	k := s.sim.key(pad(key, simKey))
	if deleted {
		n.remove(k, uint16(cpu), ctx, true, 0)
	} else {
		n.put(k, entryValue(pad(value, simValue)), uint16(cpu), ctx, true, 0)
	}
	if n.d == nil || len(n.d.queue[cpu]) == 0 {
		return nil
	}
	q := n.d.queue[cpu]
	n.d.queue[cpu] = q[:len(q)-1]
	return &q[len(q)-1]
}

// context returns the context with a name.
func (s *script) context(name string) Context {
	for c := ContextPacket; c <= ContextReread; c++ {
		if c.String() == name {
			return c
		}
	}
	s.Fatalf("unknown context %q", name)
	return 0
}

func (s *script) update(n *simNode, args []string) {
	if e := s.change(n, args[0], args[1], false, args[2:]); e != nil {
		n.d.event(e)
	}
}

func (s *script) delete(n *simNode, args []string) {
	if e := s.change(n, args[0], "", true, args[1:]); e != nil {
		n.d.event(e)
	}
}

func (s *script) changeWithoutDelivery(n *simNode, args []string) *simEvent {
	if len(args) == 1 {
		return s.change(n, args[0], "", true, nil)
	}
	return s.change(n, args[0], args[1], false, nil)
}

func (s *script) silent(n *simNode, args []string) { s.changeWithoutDelivery(n, args) }

func (s *script) late(n *simNode, args []string) {
	if e := s.changeWithoutDelivery(n, args); e != nil {
		s.lateEvents = append(s.lateEvents, *e)
	}
}

func (s *script) events(n *simNode, _ []string) {
	for _, e := range s.lateEvents {
		n.d.event(&e)
	}
	s.lateEvents = nil
}

func (s *script) write(n *simNode, _ []string) {
	n.d.take(1 << 20)
	n.d.report(nil)
}

func (s *script) take(n *simNode, _ []string) { n.d.take(1 << 20) }

func (s *script) put(n *simNode, _ []string) { n.d.write(1 << 20) }

func (s *script) report(n *simNode, args []string) {
	if len(args) == 0 {
		n.d.report(nil)
	} else {
		n.d.report(fmt.Errorf("%s", args[0]))
	}
}

func (s *script) requeue(n *simNode, _ []string) {
	n.d.tab.Update(func(tx *Tx) { s.printf("%s tries %d again", n.name, tx.RequeueFailed(1<<20)) })
}

func (s *script) reread(n *simNode, _ []string) {
	n.d.takeRereads(64)
	if len(n.d.keys) == 0 {
		s.printf("%s: nothing to read", n.name)
	}
	n.d.readKeys()
	n.d.reportReads()
}

func (s *script) scan(n *simNode, _ []string) {
	n.d.scan()
	n.d.reportReads()
}

func (s *script) adopt(n *simNode, _ []string) { s.printf("%s adopts: %v", n.name, n.d.adopt()) }

func (s *script) crash(n *simNode, _ []string) {
	n.stop()
	s.sim.updateViews()
}

func (s *script) restart(n *simNode, args []string) {
	n.stateFileMap = n.lb.id
	if slices.Contains(args, "new") {
		n.lb = s.sim.newMap()
	}
	n.start()
	n.d.loadAll()
	s.sim.updateViews()
}

func (s *script) expire(n *simNode, args []string) {
	s.sim.now += s.duration(args[0])
	n.d.tab.Update(func(tx *Tx) {
		for tx.Expire(n.clock(), 1) {
		}
		s.printf("%s: floor %d of %d", n.name, tx.Floor(), tx.Head())
	})
}

func (s *script) show(n *simNode, _ []string) {
	t := n.d.tab
	c := t.NewCursor(0)
	defer c.Close()
	t.View(func(tx *Tx) {
		var r Record
		for tx.Next(c, &r) {
			s.printf("%s %4d  %s", n.name, r.Position, s.record(n, tx, &r))
		}
		for k := range s.sim.keys {
			if tx.Get(s.sim.keys[k][:], &r) && r.Version == 0 {
				s.printf("%s       %s", n.name, s.record(n, tx, &r))
			}
		}
	})
	var all []string
	for k := range n.lb.entries {
		if e := &n.lb.entries[k]; e.live {
			all = append(all, s.sim.name(k)+"="+text(e.value[:]))
		}
	}
	slices.Sort(all)
	s.printf("%s", strings.TrimSpace(n.name+" kernel "+strings.Join(all, " ")))
}

func (s *script) record(n *simNode, tx *Tx, r *Record) string {
	value := text(r.Value)
	if r.Delete {
		value = "-"
	}
	o := tx.Owner(r.Owner)
	owner := o.Node
	if o.Node == n.name && o != n.d.self {
		owner += " (earlier)"
	}
	line := fmt.Sprintf("%s %s %s %s", text(r.Key), value, versionText(r.Version), owner)
	if r.Dirty {
		line += " dirty"
	}
	return line
}
