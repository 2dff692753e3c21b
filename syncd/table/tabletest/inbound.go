package tabletest

import (
	"math"
	"time"

	"mapsync/syncd/table"
)

// streams are the streams of a daemon.
type streams struct {
	serving  bool             // the daemon answers requests
	Inbound  []*InboundStream // by node; nil: the node was never live
	outbound []*stream        // to other nodes
}

// InboundStream receives the changes of one incarnation of a peer, over one stream after another.
//
// It keeps its position while streams come and go. A new incarnation of the peer gets a new
// InboundStream.
type InboundStream struct {
	to    *Daemon // the receiver
	peer  int     // the number of the sending node
	inc   uint64  // the incarnation of the peer
	st    *stream // nil: none
	retry int64   // the time of the next subscription attempt

	index        int          // of the current subscription; 0: none
	last         int          // the highest index on this stream
	state        inboundState // of the current subscription
	received     bool         // a message was received, so the position is valid
	position     uint64       // everything up to it was merged, in positions of the peer
	subscribePos uint64       // the first local position assigned after the subscription
	before       uint64       // subscribePos of the current full sync
	// subscribeMerged is what mergedBy returned before the subscription, and merged that of the current full sync: the answer
	// lacks what the peer merges later.
	subscribeMerged, merged uint64
	sweep                   bool           // the end of the full sync deletes what it did not contain
	synced                  bool           // the peer has sent everything at least once
	complete                bool           // a full sync that had begun has ended
	repeatFullSync          bool           // the next subscription begins at position 0
	from                    uint64         // the position at which the subscription began
	completeTo              uint64         // position up to which the peer has sent everything
	epoch                   int            // of the table of the peer
	head                    uint64         // position of the table after the last merge
	acked                   uint64         // position that was acknowledged last
	repair                  *repair        // nil: none; at most one at a time
	coverage                table.Coverage // of the current full sync
	round                   int            // number of full syncs that have begun
	fullSyncOpen            bool           // the peer has yet to send all records of the last one
	unheld                  bool           // records of earlier incarnations of the receiver, or deletes, were filtered since the full sync began
	repeatAt                int64          // the time of the next full sync; 0: none is due
	// filteredOwn has the versions of the records of earlier incarnations of the receiver that it has filtered, by key.
	filteredOwn map[int]table.Version

	wanted     bool // orphaned records are requested from the peer
	departures int  // of the view in which they were requested
	serial     int  // of the request
	sent       int  // serial of the last request that was sent
	confirmed  int  // serial of the last request that was satisfied
	dropped    bool // records of another live node were not merged since the last request
	again      bool // the next request asks for all records again: owners of dropped records may have left
}

// inboundState is the state of a subscription at the receiver.
type inboundState uint8

const (
	inboundUnsubscribed inboundState = iota // no subscription
	inboundAwaited                          // no answer yet
	inboundPending                          // the peer has no map
	inboundServed                           // the peer sends
)

// repair is a repair: the peer resends the records in some buckets.
type repair struct {
	in       *table.BucketSet // the requested buckets
	key      uint64           // the DigestID to which they belong
	before   uint64           // the first local position assigned after the request
	merged   uint64           // what mergedBy returned at the request
	found    int              // number of records that the repair has changed
	coverage table.Coverage   // keys about which the answer proves nothing
}

// setInbound creates the InboundStream of a peer, unless it exists for this incarnation.
func (d *Daemon) setInbound(peer int, inc uint64) {
	l := d.Inbound[peer]
	if l != nil && l.inc == inc {
		return
	}
	if l != nil {
		l.cut()
	}
	first := d.n.ID // if all nodes serve the map
	for i, inc := range d.view.live {
		if d.view.before(i, inc, first) {
			first = i
		}
	}
	d.Inbound[peer] = &InboundStream{
		to: d, peer: peer, inc: inc, serial: 1, wanted: first == d.n.ID || first == peer, departures: d.view.departures,
	}
}

// synced reports whether the first full sync of every live peer has been merged. It does not wait for
// a map that a peer does not have.
func (d *Daemon) synced() bool { return d.received(false) }

// allReceived reports whether synced holds and the peers that had yet to adopt their entries have begun to
// send, too.
func (d *Daemon) allReceived() bool { return d.received(true) }

// received is allReceived if complete is set, and otherwise synced.
func (d *Daemon) received(complete bool) bool {
	if d.membersSetAt == 0 {
		return false
	}
	for i, inc := range d.view.live {
		l := d.Inbound[i]
		if i != d.n.ID && inc != 0 && (!l.synced || (complete && !l.complete) || (l.wanted && l.confirmed != l.serial)) && l.state != inboundPending {
			return false
		}
	}
	return true
}

// cut ends the current stream immediately: messages in flight are lost. The sender detects it in its
// next turn.
func (l *InboundStream) cut() {
	if l.st != nil {
		l.st.receiverLeft = true
		l.streamEnded()
	}
}

// streamEnded records that the stream has ended. The position stays. Merged records stay in the table.
func (l *InboundStream) streamEnded() {
	l.st = nil
	l.withdrawHandover()
	l.unsubscribed()
	l.to.n.world.moves++
}

// unsubscribed clears the state of a subscription that has ended.
func (l *InboundStream) unsubscribed() {
	l.index, l.state, l.repair, l.confirmed, l.acked = 0, inboundUnsubscribed, nil, 0, 0
}

// connect opens a stream if there should be one. That needs an offered table, a view in which the peer
// is live, and a path in both directions.
func (l *InboundStream) connect() {
	d, w := l.to, l.to.n.world
	p := w.Nodes[l.peer]
	if l.st != nil || !d.wasOffered || d.view.live[l.peer] != l.inc || !p.runs() ||
		p.Daemon.self.Incarnation != l.inc || !p.Daemon.serving || !w.open(l.peer, d.n.ID) {
		return
	}
	l.st, l.last = &stream{from: p.Daemon, to: d}, 0
	p.Daemon.outbound = append(p.Daemon.outbound, l.st)
	l.subscribe()
}

// subscribe requests the map, from the position that the inbound stream has reached. subscribePos is
// read first: the sweep keeps what arrives from here on.
func (l *InboundStream) subscribe() {
	l.last++
	l.index, l.state, l.subscribePos, l.subscribeMerged = l.last, inboundAwaited, l.to.head()+1, l.to.mergedBy(l.peer, l.inc)
	l.st.requests = append(l.st.requests, request{
		index: l.index, subscribe: true, sendAll: l.to.stats().Unversioned > 0,
		resume: l.received && !l.repeatFullSync, position: l.position, epoch: l.epoch, orphaned: l.wanted, serial: l.serial, again: l.again,
	})
	l.sent = l.serial
	l.to.n.world.moves++
}

// request sends the requests that are due. It does not wait for answers.
func (l *InboundStream) request() {
	l.to.assign()
	if l.repeatAt != 0 && l.to.n.world.Now >= l.repeatAt {
		l.repeatAt, l.repeatFullSync = 0, true
	}
	switch {
	case l.st == nil:
		l.connect()
	case l.repeatFullSync && l.state == inboundServed:
		l.st.requests = append(l.st.requests, request{index: l.index, unsubscribe: true})
		l.unsubscribed()
		l.subscribe()
	case l.index == 0 && l.to.n.world.Now >= l.retry:
		l.subscribe()
	case l.state == inboundServed && l.sent != l.serial:
		l.sent = l.serial
		l.st.requests = append(l.st.requests, request{index: l.index, orphaned: l.wanted, serial: l.serial, again: l.again})
		l.to.n.world.moves++
	}
}

// requestRepair requests a resend of the records in some buckets. It does nothing while the peer does
// not serve the map, or while another repair is in progress.
func (l *InboundStream) requestRepair(in *table.BucketSet) {
	switch {
	case l.state != inboundServed || l.repair != nil:
	case l.st.from.layout != l.to.layout:
		l.repeatFullSync = true // the buckets of another layout do not compare
	default:
		l.repair = &repair{in: in, before: l.to.head() + 1, merged: l.to.mergedBy(l.peer, l.inc), key: l.to.tab.DigestID()}
		l.repair.coverage.Reset(l.to.tab)
		l.st.requests = append(l.st.requests, request{index: l.index, resend: in, resendKey: l.repair.key})
		l.to.n.world.moves++
	}
}

// receiveNext handles the next message that has arrived, and reports whether there was one. A message
// for a subscription that has ended is dropped.
func (l *InboundStream) receiveNext() bool {
	st, w := l.st, l.to.n.world
	switch {
	case st == nil:
		return false
	case len(st.messages) == 0:
		if st.broken {
			l.streamEnded()
		}
		return st.broken
	case w.Cuts[l.peer][l.to.n.ID]:
		return false
	}
	m := st.messages[0]
	st.messages = st.messages[1:]
	if m.kind != messageBatch {
		w.moves++
	}
	if m.index != l.index {
		return true
	}
	switch m.kind {
	case messagePending:
		l.state = inboundPending
	case messageAccepted:
		l.accept(&m)
	case messageBatch, messageResentBatch, messageRequested:
		l.merge(&m)
	case messageHandover:
		l.setHandover(m.handover)
	case messageOwnersSent:
		l.confirmed = m.serial
		l.again = l.again && m.serial != l.serial
	case messageResendDone:
		l.endRepair()
	case messageLost:
		l.unsubscribed()
		l.retry = w.Now + int64(100*time.Millisecond)
	}
	return true
}

// accept begins a full sync or a resume. A resume at another position than requested is an error of the
// sender.
func (l *InboundStream) accept(m *message) {
	if m.reset {
		l.sweep = l.received && (l.sweep || l.position > 0)
		l.before, l.merged, l.position, l.repeatFullSync = l.subscribePos, l.subscribeMerged, m.position, false
		l.coverage.Reset(l.to.tab)
		l.unheld, l.fullSyncOpen = false, true
		l.round++
	}
	if m.position != l.position {
		l.to.n.world.fail(errGap)
	}
	if m.epoch != l.epoch {
		l.completeTo = 0 // a position of the former table
	}
	l.received, l.state, l.from, l.epoch = true, inboundServed, m.position, m.epoch
	l.setHandover(m.handover)
}

// merge merges a batch of the stream, requested records, or resent records. The last batch of a full
// sync sweeps.
func (l *InboundStream) merge(m *message) {
	d := l.to
	resent := m.kind == messageResentBatch
	if m.previous != l.position {
		d.n.world.fail(errGap)
		return
	}
	if len(m.deltas) > 0 {
		now := d.n.clock()
		opt := table.RemoteOptions{Touch: (l.sweep && m.kind == messageBatch) || resent, Repair: resent}
		if opt.Touch {
			opt.Acknowledged, opt.Before = l.merged, l.before
			if resent {
				opt.Acknowledged, opt.Before = l.repair.merged, l.repair.before
			}
		}
		for i := range m.deltas {
			d.noteForgottenEarly() // a delete of the batch may have made the table forget another one
			d.tab.Update(func(tx *table.Tx) { l.mergeOne(tx, &m.deltas[i], now, opt, resent) })
		}
	}
	l.position = m.position
	if m.end && l.sweep {
		l.sweepRest()
	}
	if m.kind == messageBatch && m.end && m.open && l.fullSyncOpen {
		l.endFullSync()
	}
	l.head = d.head()
	if m.kind == messageBatch && m.end {
		l.sweep, l.synced, l.complete = false, true, l.complete || m.open
		if l.from <= l.completeTo {
			l.completeTo = max(l.completeTo, m.passed)
		}
	}
}

// mergeOne merges one record. The rules of precedence are those of decideReplace in syncd/replicate: the
// owner is authoritative in full syncs and repairs, the fallback sender only for the same version.
func (l *InboundStream) mergeOne(tx *table.Tx, x *delta, now int64, opt table.RemoteOptions, resent bool) {
	d, w := l.to, l.to.n.world
	node := w.node(x.owner.Node)
	compared := d.view.comparable(node, l.peer, d.n.ID)
	// As in syncd: only its own stream changes the record of a live node. From others, it shows whose entry this is.
	if node != l.peer && node != d.n.ID && !d.view.orphaned(node) {
		d.awaited |= 1 << (x.key % 64)
		key, peer := d.key(x.key), w.Nodes[l.peer].Name
		if !tx.IsRestored(x.version) { // the owner may lack the record that another node has restored
			d.noteOwner(tx, x, true)
		}
		l.dropped = l.dropped || !resent
		switch {
		case !resent && opt.Touch:
			tx.Cover(key, peer, math.MaxUint64)
		case resent && !x.dead:
			// A delete or an expiry shows that the peer's own record of the key is superseded, an older record that the peer
			// has lost it.
			tx.Cover(key, peer, x.version)
		}
		return
	}
	if opt.Touch {
		switch {
		case node == l.peer:
			opt.Replace = table.ReplaceAnyVersion
		case compared && d.fallbackSender == l.peer:
			opt.Replace = table.ReplaceSameVersion
		}
	}
	l.checkSent(x)
	if l.filtered(tx, x, &opt, resent) {
		return
	}
	opt.Sender = tx.Intern(table.Owner{Node: w.Nodes[l.peer].Name, Incarnation: l.inc})
	delta := table.Delta{Key: d.key(x.key), Version: x.version, Owner: tx.Intern(x.owner), Delete: x.dead, Expired: x.expired}
	value := x.value
	if !x.dead {
		delta.Value = d.bytes(&value)
	}
	if d.n.opt.Carried != nil {
		delta.Keep = keptBytes
	}
	resentDeletes, before := d.stats().DeletesResent, d.n.content(tx, x.key)
	o := tx.Remote(&delta, now, opt)
	d.noteMerged(tx, x, &before)
	if node == d.n.ID && !x.dead && len(d.n.unrestored) > 0 {
		d.checkUnrestored(tx, d.n.unrestored)
	}
	if w.Model != nil {
		w.Model.received(d, tx, x.key, d.stats().DeletesResent > resentDeletes)
	}
	if node == l.peer && opt.Touch {
		delete(d.superseded, x.key) // the peer has answered
	}
	if w.Model != nil && tx.IsRestored(x.version) {
		w.Model.adoptedEarly(d, tx, x.key)
	}
	if resent && o == table.Accepted && compared {
		l.repair.found++
	}
	switch o {
	case table.Defended:
		w.Defended = true
	case table.Refused:
		l.noteFiltered(tx, x, &opt, resent, filterValue) // the table has no room
		if node == d.n.ID && !resent {
			l.repeatAt = w.Now + repeatDelay // no comparison requests a record of the node itself
		}
	}
	if o == table.Accepted {
		w.moves++
		if w.Model != nil {
			w.Model.merged(l, tx, x.key)
		}
	}
	if w.OnReceive != nil {
		w.OnReceive(l.st.from.n, d.n, x.key)
	}
	if w.trace != nil {
		w.trace("%s > %s: %s %s v%d %s: %s", w.Nodes[l.peer].Name, d.n.Name, w.name(x.key), d.valueText(delta.Value), x.version, x.owner.Node, o)
	}
}
