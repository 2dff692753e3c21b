package table

import "fmt"

// step executes one random step.
func (r *simRun) step() {
	r.advanceTime()
	n := r.nodes[r.rand.IntN(len(r.nodes))]
	switch x := r.rand.IntN(100); {
	case x < r.config.workPercent:
		r.stepLoadBalancer(n)
	case x < r.config.workPercent+r.config.faultPercent:
		r.fault(n)
	default:
		for range 1 + r.rand.IntN(12) {
			if n.runs() && r.err == nil {
				r.stepDaemon(n.d)
				r.now += 1 + r.rand.Int64N(20_000)
			}
		}
	}
}

// stepLoadBalancer executes one action of a load balancer.
func (r *simRun) stepLoadBalancer(n *simNode) {
	key := r.rand.IntN(len(r.keys))
	for range 3 {
		if home := r.model.keys[key].home; home < 0 || home == n.id {
			break
		}
		key = r.rand.IntN(len(r.keys))
	}
	cpu, ctx, jitter := uint16(r.rand.IntN(simCPUs)), Context(max(0, r.rand.IntN(5)-2)), r.rand.Int64N(8e5)-4e5
	if r.tick > 0 {
		jitter = 0
	}
	hidden := r.blind || (r.config.kprobe && ctx == ContextSyscall)
	seen := !hidden && (!r.config.losses || r.chance(0.9))
	e := &n.lb.entries[key]
	home := r.model.keys[key].home
	x := r.rand.IntN(100)
	switch {
	case home >= 0 && home != n.id:
		if r.config.expiry && e.live {
			r.notef("%s's collector takes %s (seen %v)", n.name, r.name(key), seen && !r.config.kprobe)
			n.remove(key, cpu, ContextSyscall, seen && !r.config.kprobe, jitter)
		}
	case !e.live || x < 45:
		v := r.model.value(key)
		r.changeVolatile(n, &v)
		ok := n.put(key, v, cpu, ctx, seen, jitter)
		r.notef("%s's load balancer writes %s %s by %s on %d (seen %v): %v", n.name, r.name(key), valueText(v[:]), ctx, cpu, seen, ok)
	case x < 60:
		v := r.rewrittenValue(key, e)
		r.changeVolatile(n, &v)
		r.notef("%s's load balancer writes %s again, %s by %s on %d (seen %v)", n.name, r.name(key), valueText(v[:]), ctx, cpu, seen)
		n.put(key, v, cpu, ctx, seen, jitter)
	case x < 80:
		r.notef("%s's load balancer deletes %s by %s on %d (seen %v)", n.name, r.name(key), ctx, cpu, seen)
		n.remove(key, cpu, ctx, seen, jitter)
	case x < 95 && r.config.inPlace:
		v := r.rewrittenValue(key, e)
		if r.coin() {
			v = r.model.value(key)
		}
		r.changeVolatile(n, &v)
		r.notef("%s's load balancer changes %s in place to %s", n.name, r.name(key), valueText(v[:]))
		n.put(key, v, cpu, ctx, false, jitter)
	case r.config.inPlace:
		r.deleteBatch(n, key)
	}
}

// rewrittenValue returns the value of an entry that is written again unchanged. If a daemon restored
// an older value, the write gets a number of its own.
func (r *simRun) rewrittenValue(key int, e *simEntry) entryValue {
	if k := &r.model.keys[key]; k.home >= 0 && !sameValue(e.value, k.last) {
		return r.model.value(key)
	}
	return e.value
}

// changeVolatile changes the bytes of a value that are not significant.
func (r *simRun) changeVolatile(n *simNode, v *entryValue) {
	if n.opt.Carried != nil {
		v[volatileByte], v[localByte] = byte(r.rand.IntN(3)), byte(r.rand.IntN(3))
	}
}

// deleteBatch is a batch lookup-and-delete, which no hook reports, beginning at a key.
func (r *simRun) deleteBatch(n *simNode, from int) {
	for key := from; key < min(from+3, len(r.keys)); key++ {
		if home := r.model.keys[key].home; home < 0 || home == n.id || r.config.expiry {
			r.notef("%s's load balancer deletes %s unseen", n.name, r.name(key))
			n.remove(key, 0, ContextSyscall, false, 0)
		}
	}
}

// stepDaemon executes one action of a daemon.
func (r *simRun) stepDaemon(d *simDaemon) {
	x := r.rand.IntN(100)
	switch {
	case x < 6:
		r.updateSomeViews(d)
	case x < 10:
		d.follow()
	case d.state == simLoading && x < 60:
		d.load(1 + r.rand.IntN(6))
	case !d.wasOffered:
	case x < 25:
		d.deliver(r.rand.IntN(simCPUs))
	case x < 30:
		d.adopt()
		d.saveMapID()
	case x < 32:
		d.findUnknown()
		d.tab.View(func(tx *Tx) { tx.Audit(1 + r.rand.IntN(5)) })
		d.compact()
	case x >= 60:
		r.stepStreams(d)
	case d.state < simSyncing:
	case x < 52:
		d.work(1 + r.rand.IntN(3))
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

// stepStreams executes one action of a daemon for its streams, or all pending ones.
func (r *simRun) stepStreams(d *simDaemon) {
	l := d.inbound[r.rand.IntN(len(d.inbound))]
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
		for _, l := range d.inbound {
			if l != nil {
				l.request()
				l.receiveNext()
			}
		}
	}
}

// updateSomeViews applies some of the pending membership changes to the view of a daemon.
func (r *simRun) updateSomeViews(d *simDaemon) {
	live, same := make([]uint64, len(r.nodes)), d.membersSetAt != 0
	copy(live, d.view.live)
	for i, n := range r.nodes {
		if i == d.n.id {
			continue
		}
		var inc uint64
		if n.d != nil && r.open(i, d.n.id) {
			inc = n.d.self.Incarnation
		}
		switch {
		case n.d != nil && n.frozen && r.coin(), r.config.gossip && r.chance(0.03):
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
func (r *simRun) finish() error {
	for _, n := range r.nodes {
		if n.d == nil && (r.chance(r.config.restartChance) || n.incarnations == 0) {
			r.setClock(n)
			n.start()
		}
	}
	if err := r.checkDistinctDigests(); err != nil {
		return err
	}
	r.notef("healed")
	r.heal()
	err := r.converge()
	for range 4 {
		if err == nil || r.err != nil || (!r.forgot() && !r.defended) {
			break
		}
		r.notef("%v", err)
		r.compare()
		r.pumpAll()
		err = r.converge()
	}
	if err != nil {
		return err
	}
	return r.verify()
}

// verify checks each table by itself, and the keys against the model.
func (r *simRun) verify() error {
	up := r.up()
	for _, n := range up {
		n.d.internals().Check(r, n.d.tab)
		if n.d.tab.Stats().AuditFound > 0 {
			return fmt.Errorf("%s: audits found digests that were wrong", n.name)
		}
	}
	if len(up) == 0 {
		return nil
	}
	for k := range r.keys {
		c := up[0].d.content(k)
		if err := r.model.check(k, &c); err != nil {
			return err
		}
	}
	return nil
}

// forgot reports whether some node has forgotten a tombstone. A node that has not received the delete
// may then resend the record, until nodes compare their digests.
func (s *sim) forgot() bool {
	for _, n := range s.up() {
		if n.d.floor() > 0 {
			return true
		}
	}
	return s.forgotten
}

// checkDistinctDigests checks that the digests of two nodes are equal if and only if their records are
// equal.
func (r *simRun) checkDistinctDigests() (err error) {
	up := r.up()
	if len(up) < 2 {
		return nil
	}
	a := up[r.rand.IntN(len(up))]
	b := up[r.rand.IntN(len(up))]
	if a == b {
		return nil
	}
	node := r.nodes[r.rand.IntN(len(r.nodes))].name
	a.d.tab.View(func(ta *Tx) {
		b.d.tab.View(func(tb *Tx) {
			same := true
			for k := range r.keys {
				x, y := a.content(ta, k), b.content(tb, k)
				mine := x.live() && x.version != 0 && x.owner.Node == node
				other := y.live() && y.version != 0 && y.owner.Node == node
				same = same && mine == other && (!mine || x.same(&y, a.opt.Carried != nil))
			}
			x := ta.Digest(node, nil)
			if y := tb.Digest(node, nil); (x == y) != same {
				err = fmt.Errorf("%s and %s have equal records of %s: %v; equal digests: %v", a.name, b.name, node, same, x == y)
			}
		})
	})
	return err
}

// compare makes each node compare its records with each sender and request a resend of the
// differences.
func (r *simRun) compare() {
	for _, n := range r.up() {
		for _, l := range n.d.inbound {
			if l == nil || l.state != simServed {
				continue
			}
			in := new(BucketSet)
			for i, o := range r.nodes {
				if n.d.view.comparable(i, l.peer, n.id) {
					differing(in, l.st.from.tab, n.d.tab, o.name)
				}
			}
			if in.Len() > 0 {
				l.requestRepair(in)
			}
		}
	}
}

func differing(in *BucketSet, a, b *Table, node string) {
	var x, y Buckets
	a.View(func(tx *Tx) { tx.Digest(node, &x) })
	b.View(func(tx *Tx) { tx.Digest(node, &y) })
	for i := range x {
		if x[i] != y[i] {
			in.Add(i)
		}
	}
}
