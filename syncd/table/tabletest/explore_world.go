package tabletest

import (
	"fmt"
	"slices"
	"time"

	"mapsync/syncd/table"
)

// exploreConf is one small cluster. TestExplore follows every action sequence of it.
//
// Each flag that is set adds actions or states, and with them paths. A cluster therefore has only the
// flags that its scenario needs.
type exploreConf struct {
	name   string // name of the subtest
	nodes  int    // at most exploreNodes
	home   int    // the only node whose load balancer writes the key; -1: all nodes
	step   int64  // the time that passes with each step, in ns
	tick   int64  // granularity of the clocks in ns, if above 1 ns
	ahead  int64  // the offset of each node's clock to the clock of the previous node, in ns
	scans  bool   // hooks miss changes, and scans find them
	crash  bool   // daemons end and start again
	lost   bool   // hosts crash and lose their maps
	evict  bool   // maps evict the key
	unseen bool   // no hook reports evictions
	keys   bool   // hooks report which key was updated, without the value
	calls  bool   // hooks report which key bpf(2) has deleted, without the order with other changes
	fresh  bool   // the key does not exist at the beginning
	dead   bool   // at the beginning the key is deleted, and all tables hold a compact tombstone
	start  bool   // at the beginning the first daemon has just restarted
	// coarse: a step does more, so that a path of the same length reaches further. A step does all
	// pending work of the writer or carries all records of a stream. A change and its event may be one
	// step.
	coarse         bool
	filters, steps bool            // nodes filter the record of the key; wall clocks are stepped
	layouts        bool            // the layout of the map changes
	rekeys         bool            // the digest key changes, and nodes request repairs
	limit          bool            // a table has room for one record of a peer; there is a second key, of the second node
	timers         bool            // values have a timer, and entries that were taken over expire
	any            bool            // deletes by a collector on any node replicate
	only           []exploreAction // the allowed kinds of actions; nil: all
	less           int             // steps below other clusters: this one has more states
	bare           int             // the node without the map, if not 0; the first node always has it
}

// exploreWorld is a cluster with one key, in the state that a sequence of actions leads to. It cannot
// be copied: another sequence begins with another world.
type exploreWorld struct {
	*World
	conf *exploreConf
	cpus int // the number of CPUs whose events may be reordered
}

// newExploreWorld starts a cluster and runs it until it is idle.
//
// The beginning depends on conf alone, so that the replay of a path gives the same world each time.
func newExploreWorld(tb interface{ Fatal(...any) }, conf *exploreConf, tables *Tables) *exploreWorld {
	w := &exploreWorld{World: NewWorld(tb, tables, NodeNames(conf.nodes)...), conf: conf, cpus: 1}
	w.scans, w.tick, w.keysOnly, w.deletedKeys = conf.scans, conf.tick, conf.keys, conf.calls
	w.Model = NewModel(w.World, conf.home, 1)
	w.Model.skewed = conf.ahead != 0
	if conf.steps {
		w.maxAhead = int64(time.Second)
	}
	w.Key(padded("k"))
	if conf.limit {
		w.Key(padded("limit"))
	} else {
		w.Model.keys = w.Model.keys[:1]
	}
	// Otherwise the times of two events show their order, whichever CPU reported them.
	if conf.step < maxDisorder {
		w.cpus = 2
	}
	w.startNodes()
	w.runUntilIdle()
	if conf.limit {
		w.Nodes[1].Put(1, w.Model.NextValue(1), 0, table.ContextPacket, true, 0)
		w.runUntilIdle()
	}
	if !conf.fresh {
		n := w.Nodes[0]
		n.Put(0, w.Model.NextValue(0), 0, table.ContextPacket, true, 0)
		w.runUntilIdle()
	}
	if conf.dead {
		w.Nodes[0].Remove(0, 0, table.ContextPacket, true, 0)
		w.runUntilIdle()
		for _, n := range w.Nodes {
			if n.Daemon.compact(); !n.hidden && n.Daemon.internals().Compacted(n.Daemon.tab) != 1 {
				w.fail(fmt.Errorf("%s: tombstone: got one in a slot, want a compact one", n.Name))
			}
		}
	}
	// All paths begin at the same time, after every waiting time of the start.
	w.Now = startTime + int64(time.Minute)
	if conf.start {
		n := w.Nodes[0]
		w.Model.Stopping(n)
		n.Stop()
		w.Model.Stopped(n)
		w.startStep(n)
		for _, n := range w.Nodes[1:] {
			n.Daemon.updateView()
		}
	}
	return w
}

// startNodes configures and starts the nodes, one after the other.
func (w *exploreWorld) startNodes() {
	conf := w.conf
	for i := range w.Nodes {
		i = (i + conf.bare) % conf.nodes // the node without the map starts first
		n := w.Nodes[i]
		n.opt = table.Options{TombstoneTTL: 1000 * time.Hour, DeletesAny: conf.any}
		if conf.limit {
			n.opt.MaxLive = 1
		}
		if conf.timers {
			n.opt.TakeoverExpiry = time.Second
			n.configureTimers()
		}
		if conf.evict && (conf.crash || conf.start) {
			// After a restart, deletes also count as evictions. The records expire before the check.
			n.opt.EvictedTTL = 5 * time.Second
		}
		n.Offset, n.opt.MaxSkew = int64(i)*conf.ahead, time.Duration(w.maxAhead/2)
		n.hidden, n.lru, n.evictionsUnseen = conf.bare > 0 && i == conf.bare, conf.evict, conf.unseen
		n.Start()
		w.Now += 2
	}
}

// runUntilIdle does all work that is pending at the beginning.
func (w *exploreWorld) runUntilIdle() {
	for range 3 {
		w.Now += 2 * TimestampMargin
		for _, n := range w.Nodes {
			n.Daemon.RunUntilIdle()
		}
		w.PumpAll()
	}
}

// nextActions returns the possible next actions. It leaves out actions that cannot change the state, and
// those that lead to the same state as another. It appends to to.
func (w *exploreWorld) nextActions(to []exploreAction) []exploreAction {
	for i, n := range w.Nodes {
		me := exploreAction(i << 2)
		e := &n.Map.entries[0]
		writes := w.conf.home < 0 || w.conf.home == i
		add := func(ok bool, kinds ...exploreAction) {
			for _, k := range kinds {
				if ok {
					to = append(to, k|me)
				}
			}
		}
		hooked := n.Daemon != nil && n.Daemon.m == n.Map
		// CPUs are interchangeable until one of them has been used.
		second := hooked && w.cpus > 1 && w.firstUsed(n.Daemon)
		drained := hooked && w.conf.coarse && len(n.Daemon.queue[0])+len(n.Daemon.queue[1]) == 0
		add(writes && !n.hidden, actWrite)
		add(writes && drained, actChange)
		add(writes && drained && e.live, actErase)
		add(writes && second, actWrite1)
		add(writes && e.live, actDelete)
		add(writes && second && e.live, actDelete1)
		add(e.live && hooked, actCollect)
		add(w.conf.scans && hooked && writes, actHidden)
		add(w.conf.scans && hooked && e.live, actHidden1)
		add(w.conf.evict && e.live, actEvict)
		add(n.Daemon == nil || w.startPending(n.Daemon), actStart)
		add(w.conf.crash && n.Daemon != nil, actCrash)
		add(w.conf.lost && n.Daemon != nil, actLostMap)
		add(w.conf.filters, actFilter)
		add(w.conf.steps, actClock)
		add(w.conf.layouts, actLayout)
		add(w.conf.rekeys && len(n.opt.DigestKey) == 0, actRekey)
		if n.Daemon != nil {
			to = w.nextDaemonActions(to, n.Daemon, me)
		}
	}
	if only := w.conf.only; only != nil {
		to = slices.DeleteFunc(to, func(a exploreAction) bool { return !slices.Contains(only, a.kind()) })
	}
	return to
}

// firstUsed reports whether the state of a daemon depends on CPU 0 yet. If not, CPU 1 is equivalent.
func (w *exploreWorld) firstUsed(d *Daemon) bool {
	if len(d.queue[0]) > 0 || d.tab == nil {
		return true
	}
	cpu, known := d.internals().CPU(d.tab, d.key(0))
	return known && cpu == 0
}

// nextDaemonActions appends the possible actions of a daemon that runs. me has the bits of its node.
func (w *exploreWorld) nextDaemonActions(to []exploreAction, d *Daemon, me exploreAction) []exploreAction {
	if len(d.queue[0]) > 0 && d.m != nil {
		to = append(to, actEvent|me)
	}
	if len(d.queue[1]) > 0 && d.m != nil {
		to = append(to, actEvent1|me)
	}
	if d.state >= stateSyncing && (d.phase != phaseFill || !d.idle()) {
		to = append(to, actWork|me)
	}
	if d.state >= stateSyncing && w.scans {
		to = append(to, actScan|me)
	}
	if d.tab != nil && d.compacts() {
		to = append(to, actCompact|me)
	}
	if d.tab != nil && d.wallStep != d.n.wallStep {
		to = append(to, actFollow|me)
	}
	if slices.ContainsFunc(d.Inbound, func(l *InboundStream) bool { return l != nil && l.repeatAt != 0 }) {
		to = append(to, actRepeat|me)
	}
	if d.state == stateReplicating && w.conf.rekeys {
		to = append(to, actRepair|me)
	}
	if d.state == stateReplicating && w.conf.timers && d.phase == phaseFill {
		to = append(to, actExpire|me)
	}
	for j := range w.Nodes {
		if j == d.n.ID || !d.wasOffered {
			continue
		}
		to = append(to, actSend|me|exploreAction(j))
		if l := d.Inbound[j]; !w.conf.coarse && l != nil && l.st != nil && (len(l.st.messages) > 0 || l.st.broken) {
			to = append(to, actTake|me|exploreAction(j))
		}
	}
	return to
}

// do executes one action. nextActions must have returned it for this state. Each action takes one step
// of time.
func (w *exploreWorld) do(a exploreAction) {
	w.Now += w.conf.step
	i, j := a.nodes()
	n := w.Nodes[i]
	switch k := a.kind(); k {
	case actWrite, actWrite1, actHidden:
		cpu := uint16(k >> 4 & 1)
		n.Put(0, w.nextValue(n), cpu, table.ContextPacket, k != actHidden, w.jitter(cpu))
	case actDelete, actDelete1:
		cpu := uint16(k >> 4 & 1)
		n.Remove(0, cpu, table.ContextPacket, true, w.jitter(cpu))
	case actCollect, actHidden1:
		n.Remove(0, uint16(w.cpus-1), table.ContextSyscall, k == actCollect, w.jitter(uint16(w.cpus-1)))
	case actEvict:
		n.evict(-1, 0, table.ContextPacket, true, w.jitter(0))
	case actEvent, actEvent1:
		n.Daemon.Deliver(int(k >> 4 & 1))
	case actChange:
		n.Put(0, w.nextValue(n), 0, table.ContextPacket, true, w.jitter(0))
		n.Daemon.Deliver(0)
	case actErase:
		n.Remove(0, 0, table.ContextPacket, true, w.jitter(0))
		n.Daemon.Deliver(0)
	case actWork:
		w.work(n.Daemon)
		for w.conf.coarse && n.Daemon.phase != phaseFill {
			w.work(n.Daemon)
		}
	case actScan:
		if n.Daemon.scanning {
			n.Daemon.scanOn()
		} else {
			n.Daemon.scanSome(1)
		}
	case actStart:
		w.startStep(n)
	case actCompact:
		n.Daemon.compact()
	case actFilter, actClock, actFollow, actRepeat, actLayout, actRekey, actRepair, actExpire:
		w.disturb(n, k)
	case actCrash, actLostMap:
		w.Model.Stopping(n)
		n.Stop()
		w.Model.Stopped(n)
		if k == actLostMap {
			n.Map = n.newMap()
			w.Model.LostMap(n)
		}
	// In a coarse cluster the peer receives at once.
	case actSend:
		w.send(n.Daemon, j)
		if p := w.Nodes[j].Daemon; w.conf.coarse && p != nil && p.Inbound[i] != nil {
			for p.Inbound[i].receiveNext() {
			}
		}
	case actTake:
		l := n.Daemon.Inbound[j]
		l.receiveNext()
		l.receiveControl()
	}
}

// jitter returns the error of the times in events of a CPU, in ns, if all events have about the same
// time.
func (w *exploreWorld) jitter(cpu uint16) int64 {
	if w.conf.step >= TimestampMargin || w.tick > 0 {
		return 0
	}
	return (1 - 2*int64(cpu)) * TimestampMargin * 2 / 5
}

// work does the next part of a pass of the writer that has an effect. The parts are to take, write and
// report records, to take and read keys for rereads, and to enter the results. Parts without an effect
// are passed in the same action.
func (w *exploreWorld) work(d *Daemon) {
	for {
		switch d.work(1 << 20); {
		case d.phase == phaseFill, d.phase == phaseWrite && len(d.batch) > 0, d.phase == phaseReport && len(d.batch) > 0,
			d.phase == phaseDrop, d.phase == phaseAnswer:
			return
		}
	}
}

// startPending reports whether a part of a daemon's start or a change of the membership is pending.
func (w *exploreWorld) startPending(d *Daemon) bool {
	return d.state == stateLoading || w.mapReplaced(d) || (d.state == stateSyncing && (d.alone() || d.synced())) || w.viewOutdated(d)
}

// mapReplaced reports whether a daemon has yet to attach a map with another layout.
func (w *exploreWorld) mapReplaced(d *Daemon) bool { return w.conf.layouts && d.m != d.n.Map }

// startStep does the next part of a daemon's start. The parts are to attach the map, to read it, to
// enter the entries, to update the membership view, and to adopt.
func (w *exploreWorld) startStep(n *Node) {
	switch d := n.Daemon; {
	case d == nil:
		n.Start()
		n.Daemon.updateView()
		n.Daemon.follow()
	case w.mapReplaced(d):
		for w.mapReplaced(d) {
			d.follow()
		}
	case d.state == stateLoading:
		d.load(1 << 20)
	case w.viewOutdated(d):
		d.updateView()
	default:
		d.Adopt()
		d.SaveMapID()
	}
}

// viewOutdated reports whether the membership view of a daemon differs from the live nodes. Networks
// have no faults here, so a node is live if its daemon runs.
func (w *exploreWorld) viewOutdated(d *Daemon) bool {
	for i, n := range w.Nodes {
		inc := uint64(0)
		if n.Daemon != nil {
			inc = n.Daemon.self.Incarnation
		}
		if d.view.live[i] != inc {
			return true
		}
	}
	return d.membersSetAt == 0
}

// send puts pending records of one daemon on the stream to a peer, up to one batch. Control messages
// before the batch are received at once: their order with other actions makes no difference worth
// exploring.
func (w *exploreWorld) send(d *Daemon, to int) {
	p := w.Nodes[to].Daemon
	if p == nil || p.Inbound[d.n.ID] == nil {
		return
	}
	l := p.Inbound[d.n.ID]
	l.request()
	for st := l.st; st != nil && st == l.st && !st.broken && st.serve(1<<10); {
		if n := len(st.messages); n > 0 && st.messages[n-1].kind == messageBatch {
			return
		}
		l.receiveControl()
	}
}

// receiveControl receives control messages of the stream, up to the next batch.
func (l *InboundStream) receiveControl() {
	for l.st != nil && len(l.st.messages) > 0 && l.st.messages[0].kind != messageBatch && l.receiveNext() {
	}
}
