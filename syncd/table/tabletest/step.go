package tabletest

import (
	"bytes"
	"fmt"

	"mapsync/syncd/table"
)

// step executes one random step: an action of a load balancer, a fault, or some actions of a daemon. The
// percentages of the configuration divide the steps. A daemon gets several actions in a row, because one
// alone rarely completes anything.
func (r *simulation) step() {
	r.advanceTime()
	n := r.Nodes[r.rand.IntN(len(r.Nodes))]
	r.sharedFault(n)
	r.environmentFault(n)
	r.layoutFault(n)
	switch x := r.rand.IntN(100); {
	case x < r.config.workPercent:
		r.stepLoadBalancer(n)
	case x < r.config.workPercent+r.config.faultPercent:
		r.fault(n)
	default:
		for range 1 + r.rand.IntN(12) {
			if n.runs() && r.err == nil {
				r.stepDaemon(n.Daemon)
				r.Now += 1 + r.rand.Int64N(20_000)
			}
		}
	}
}

// stepLoadBalancer executes one action of a load balancer: a write, a write of the same value, a delete,
// a change in place or a batch of deletes. For a key that belongs to another node it acts as the
// collector of a standby.
func (r *simulation) stepLoadBalancer(n *Node) {
	if n.suspendedAt != 0 || r.Now < n.stoppedUntil {
		return
	}
	key := r.rand.IntN(len(r.keys))
	// Keys of the node itself, or of all nodes, are preferred. The node's collector takes the others.
	for range 3 {
		if home := r.Model.keys[key].home; home < 0 || home == n.ID {
			break
		}
		key = r.rand.IntN(len(r.keys))
	}
	cpu, ctx, jitter := uint16(r.rand.IntN(numCPUs)), table.Context(max(0, r.rand.IntN(5)-2)), r.rand.Int64N(8e5)-4e5
	// A coarse clock already gives several events the same time.
	if r.tick > 0 {
		jitter = 0
	}
	// A scan finds the changes that no hook reports.
	hidden := r.blind || (r.config.kprobe && ctx == table.ContextSyscall)
	seen := !hidden && (!r.config.losses || r.chance(0.9))
	e := &n.Map.entries[key]
	home := r.Model.keys[key].home
	x := r.rand.IntN(100)
	// Only clearMap makes deletes that may be a clear.
	if r.config.environment.clears && x >= 60 {
		ctx, seen = table.ContextPacket, true
	}
	switch {
	case home >= 0 && home != n.ID:
		if r.config.expiry && e.live {
			r.notef("%s's collector takes %s (seen %v)", n.Name, r.name(key), seen && !r.config.kprobe)
			n.Remove(key, cpu, table.ContextSyscall, seen && !r.config.kprobe, jitter)
		}
	case !e.live || x < 45:
		v := n.fittingValue(key)
		r.changeVolatile(n, &v)
		r.setTimer(&v, false)
		// A full map may refuse the write.
		ok := n.Put(key, v, cpu, ctx, seen, jitter)
		r.notef("%s's load balancer writes %s %s by %s on %d (seen %v): %v", n.Name, r.name(key), valueText(v[:]), ctx, cpu, seen, ok)
	// The same value again changes nothing significant, but is a write of the key.
	case x < 60:
		v := r.rewrittenValue(n, key)
		r.changeVolatile(n, &v)
		r.setTimer(&v, false)
		r.notef("%s's load balancer writes %s again, %s by %s on %d (seen %v)", n.Name, r.name(key), valueText(v[:]), ctx, cpu, seen)
		n.Put(key, v, cpu, ctx, seen, jitter)
	case x < 80:
		r.notef("%s's load balancer deletes %s by %s on %d (seen %v)", n.Name, r.name(key), ctx, cpu, seen)
		n.Remove(key, cpu, ctx, seen, jitter)
	// No hook reports a change in place. Half of them have a new value, the others change volatile bytes
	// only.
	case x < 95 && r.config.inPlace:
		v := r.rewrittenValue(n, key)
		if r.coin() {
			v = n.fittingValue(key)
		}
		r.changeVolatile(n, &v)
		v[timerByte] = e.value[timerByte]
		r.setTimer(&v, true)
		r.notef("%s's load balancer changes %s in place to %s", n.Name, r.name(key), valueText(v[:]))
		n.Put(key, v, cpu, ctx, false, jitter)
	case r.config.inPlace && !r.config.environment.clears:
		r.deleteBatch(n, key)
	}
}

// rewrittenValue returns the value of an entry that is written again unchanged. If a daemon restored an
// older value, the write gets a number of its own. Otherwise the model would take the write of an older
// value for the newest one.
func (r *simulation) rewrittenValue(n *Node, key int) Value {
	e := &n.Map.entries[key]
	if k := &r.Model.keys[key]; k.home >= 0 && !sameValue(e.value, k.last) {
		return n.fittingValue(key)
	}
	return e.value
}

// changeVolatile changes the bytes of a value that are not significant. Few different values make it
// likely that a write changes nothing.
func (r *simulation) changeVolatile(n *Node, v *Value) {
	if n.opt.Carried != nil {
		v[volatileByte], v[localByte] = byte(r.rand.IntN(3)), byte(r.rand.IntN(3))
	}
}

// deleteBatch is a batch lookup-and-delete, which no hook reports, beginning at a key.
func (r *simulation) deleteBatch(n *Node, from int) {
	for key := from; key < min(from+3, len(r.keys)); key++ {
		if home := r.Model.keys[key].home; home < 0 || home == n.ID || r.config.expiry {
			r.notef("%s's load balancer deletes %s unseen", n.Name, r.name(key))
			n.Remove(key, 0, table.ContextSyscall, false, 0)
		}
	}
}

// stepDaemon executes one action of a daemon.
//
// The shares are so that most actions carry records, write the map or deliver events. Actions that need
// an offered table come after the case that excludes its absence, and those that need an attached map
// after that of the state.
func (r *simulation) stepDaemon(d *Daemon) {
	x := r.rand.IntN(100)
	switch {
	case x < 6:
		// Each daemon detects changes of the membership at its own time.
		r.updateSomeViews(d)
	case x < 10:
		d.follow()
	case d.state == stateLoading && x < 60:
		d.load(1 + r.rand.IntN(6))
	case !d.wasOffered:
	case x < 25:
		d.Deliver(r.rand.IntN(numCPUs))
	case x < 30:
		d.Adopt()
		d.SaveMapID()
	case x < 32:
		// These jobs run rarely in syncd, too.
		d.findUnknown()
		d.tab.View(func(tx *table.Tx) { tx.Audit(1 + r.rand.IntN(5)) })
		d.compact()
	case x >= 60:
		r.stepStreams(d)
	case d.state < stateSyncing:
	case x < 52:
		d.work(1 + r.rand.IntN(3))
	// A scan is divided between reading and comparing, so that changes come between.
	case x < 56 && (r.scans || d.scanning):
		if r.coin() {
			d.scanSome(1 + r.rand.IntN(5))
		} else {
			d.scanOn()
		}
	case x < 58:
		d.settle()
	case x < 59:
		d.compact()
	default:
		d.upkeep()
	}
}

// stepStreams executes one action of a daemon for its streams, or all pending ones. Both ends act apart,
// so messages stay in flight while other things happen.
func (r *simulation) stepStreams(d *Daemon) {
	l := d.Inbound[r.rand.IntN(len(d.Inbound))]
	switch x := r.rand.IntN(10); {
	case x < 3 && len(d.outbound) > 0:
		d.outbound[r.rand.IntN(len(d.outbound))].serve(1 + r.rand.IntN(5))
	case x < 7 && l != nil:
		l.request()
		l.receiveNext()
	case x < 8:
		for i := len(d.outbound) - 1; i >= 0; i-- {
			d.outbound[i].serve(1 + r.rand.IntN(5))
		}
	default:
		for _, l := range d.Inbound {
			if l != nil {
				l.request()
				l.receiveNext()
			}
		}
	}
}

// updateSomeViews applies some of the pending membership changes to the view of a daemon. It may also
// report a live node as gone: gossip does that with a frozen node, and rarely with any node. The node
// then comes back with the same incarnation.
func (r *simulation) updateSomeViews(d *Daemon) {
	live, same := make([]uint64, len(r.Nodes)), d.membersSetAt != 0
	copy(live, d.view.live)
	for i, n := range r.Nodes {
		if i == d.n.ID {
			continue
		}
		var inc uint64
		if n.Daemon != nil && r.open(i, d.n.ID) {
			inc = n.Daemon.self.Incarnation
		}
		switch {
		case n.Daemon != nil && (n.frozen || n.suspendedAt != 0) && r.coin(), r.config.gossip && r.chance(0.03):
			inc = 0
		case r.chance(0.3):
			continue
		}
		same = same && live[i] == inc
		live[i] = inc
	}
	if !same {
		d.setPeers(live)
	}
}

// finish ends the run: it removes all faults and checks the final state.
//
// A node that is down may start again before. The others stay away for good, so their records are
// orphaned. A cluster that does not converge at once may compare its digests and repair, if nodes have
// forgotten tombstones, refused records of unverified owners or inferred deletes, or if the owner that peers have named of an
// entry lacks it: only then do the rules need repairs.
func (r *simulation) finish() error {
	for _, n := range r.Nodes {
		if n.Daemon == nil && (r.chance(r.config.restartChance) || n.incarnations == 0) {
			r.setClock(n)
			n.Start()
		}
	}
	if err := r.checkDistinctDigests(); err != nil {
		return err
	}
	r.notef("healed")
	r.Heal()
	err := r.Converge()
	if r.config.environment.drains {
		r.endDrains()
		err = r.Converge()
	}
	for range 4 {
		if err == nil || r.err != nil || (!r.forgot() && !r.Defended && !r.filtered && !r.inferred && !r.ownerLacksNamed()) {
			break
		}
		r.notef("%v", err)
		r.Compare()
		r.PumpAll()
		err = r.Converge()
	}
	if err != nil {
		return err
	}
	return r.verify()
}

// verify checks each table by itself, and the keys against the model. All nodes have equal tables by
// now, so one node is compared with the model.
func (r *simulation) verify() error {
	up := r.Up()
	for _, n := range up {
		n.Daemon.internals().Check(r, n.Daemon.tab)
		if n.Daemon.tab.Stats().AuditFound > 0 {
			return fmt.Errorf("%s: audits found digests that were wrong", n.Name)
		}
	}
	if len(up) == 0 {
		return nil
	}
	for k := range r.keys {
		c := up[0].Daemon.Content(k)
		if err := r.Model.Check(k, &c); err != nil {
			return err
		}
	}
	return nil
}

// forgot reports whether some node has forgotten a tombstone. A node that has not received the delete
// may then resend the record, until nodes compare their digests. It is also true if a table that is gone
// had forgotten one.
func (w *World) forgot() bool {
	for _, n := range w.Up() {
		if n.Daemon.floor() > 0 {
			return true
		}
	}
	return w.forgotten
}

// checkDistinctDigests checks that the digests of two nodes are equal if and only if their records are
// equal. It runs before the cluster heals, while most tables differ. Unversioned records and tombstones
// do not count.
func (r *simulation) checkDistinctDigests() (err error) {
	up := r.Up()
	if len(up) < 2 {
		return nil
	}
	a := up[r.rand.IntN(len(up))]
	b := up[r.rand.IntN(len(up))]
	if a == b || a.Daemon.layout != b.Daemon.layout || !bytes.Equal(a.opt.DigestKey, b.opt.DigestKey) {
		return nil
	}
	node := r.Nodes[r.rand.IntN(len(r.Nodes))].Name
	a.Daemon.tab.View(func(ta *table.Tx) {
		b.Daemon.tab.View(func(tb *table.Tx) {
			same := true
			for k := range r.keys {
				x, y := a.content(ta, k), b.content(tb, k)
				mine := x.Live() && x.version != 0 && x.Owner.Node == node
				other := y.Live() && y.version != 0 && y.Owner.Node == node
				same = same && mine == other && (!mine || x.same(&y, a.opt.Carried != nil))
			}
			x := ta.Digest(node, nil)
			if y := tb.Digest(node, nil); (x == y) != same {
				err = fmt.Errorf("%s and %s have equal records of %s: %v; equal digests: %v", a.Name, b.Name, node, same, x == y)
			}
		})
	})
	return err
}

// Compare makes each node compare its records with each sender and request a resend of the
// differences.
//
// It takes the buckets from both tables at once, without the confirmation by a second digest that syncd
// needs. A peer that is not served is left out.
func (w *World) Compare() {
	for _, n := range w.Up() {
		for _, l := range n.Daemon.Inbound {
			if l == nil || l.state != inboundServed || !bytes.Equal(n.opt.DigestKey, l.st.from.n.opt.DigestKey) {
				continue
			}
			if n.Daemon.layout != l.st.from.layout {
				l.repeatFullSync = true // only versions compare
				continue
			}
			in := new(table.BucketSet)
			for i, o := range w.Nodes {
				// As in syncd: the records of the sender, and orphaned records.
				if n.Daemon.view.comparable(i, l.peer, n.ID) {
					differing(in, l.st.from.tab, n.Daemon.tab, o.Name)
				}
			}
			if in.Len() > 0 {
				l.requestRepair(in)
			}
		}
	}
}

// differing adds the buckets in which the digests of a node's records differ between two tables.
func differing(in *table.BucketSet, a, b *table.Table, node string) {
	var x, y table.Buckets
	a.View(func(tx *table.Tx) { tx.Digest(node, &x) })
	b.View(func(tx *table.Tx) { tx.Digest(node, &y) })
	for i := range x {
		if x[i] != y[i] {
			in.Add(i)
		}
	}
}
