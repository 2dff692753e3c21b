package daemon

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"mapsync/syncd/replicate"
	"mapsync/syncd/table"
)

// quietTime is for how long nothing may change here before a handover is complete:
// traffic that is being moved away still comes for a while.
const quietTime = time.Second

// readAgain is for how long what a scan found may take to become a change.
const readAgain = 200 * time.Millisecond

// Handover is how far a drained node has handed over.
type Handover struct {
	// Drained says that the node is out of service, and Since since when.
	Drained bool      `json:"drained"`
	Since   time.Time `json:"since,omitzero"`
	// Done says that nothing has changed here for a second, that a scan since then found
	// nothing that no hook had seen, and that every live peer has received and written, or
	// refused, all that this node held at the last change.
	Done bool `json:"done"`
	// Waiting is what is missing otherwise, for people.
	Waiting []string `json:"waiting"`
	// Peers is the number of live peers; 0 of a node that was drained by force.
	Peers int `json:"peers"`
	// NotHeld are the entries that live peers reported not to hold.
	NotHeld []NotHeld `json:"not_held"`
	// Cancelled is why the last drain ended without an operator, or empty.
	Cancelled string `json:"cancelled,omitempty"`
}

// NotHeld is how many entries of a map a live peer does not hold.
type NotHeld struct {
	Peer string `json:"peer"`
	Map  string `json:"map"`
	// Entries is the sum of Failed, which did not go into the peer's kernel map, and
	// Refused, which the peer cannot hold.
	Entries uint64 `json:"entries"`
	Failed  uint64 `json:"failed"`
	Refused uint64 `json:"refused"`
	// Live and MaxEntries say how full the peer's map is.
	Live       uint64 `json:"live"`
	MaxEntries uint64 `json:"max_entries"`
	// Unknown says that the peer does not report what it holds.
	Unknown bool `json:"unknown,omitempty"`
}

// Text returns a line for people.
func (n *NotHeld) Text() string {
	if n.Unknown {
		return fmt.Sprintf("%s does not report how much it holds of %s (older release)", n.Peer, n.Map)
	}
	var why []string
	if n.Failed > 0 {
		why = append(why, fmt.Sprintf("%d do not go into its kernel map (%d records for %d entries)", n.Failed, n.Live, n.MaxEntries))
	}
	if n.Refused > 0 {
		why = append(why, fmt.Sprintf("%d cannot be held there", n.Refused))
	}
	return fmt.Sprintf("%d entries of %s not held by %s: %s", n.Entries, n.Map, n.Peer, strings.Join(why, "; "))
}

// drain is the state of a node that an operator takes out of service. It goes on
// replicating.
type drain struct {
	mu        sync.Mutex
	since     time.Time // zero: in service
	forced    bool      // it needs no live peer
	cancelled string    // why the last one ended by itself
	changed   time.Time // when a map changed last
	quiet     int64     // by the daemon's clock, when that was quietTime ago; 0: it is not
	scanned   time.Time // when the scans that began after that were over; zero: they are not
	marks     []mark
	done      bool
	waiting   []string
	peers     int
	notHeld   []NotHeld
}

// mark is how a map was after its last change by this node.
type mark struct {
	name    string
	table   *table.Table
	changes uint64
	head    uint64
}

func (r *drain) begun() (since time.Time, drained bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.since, !r.since.IsZero()
}

// ErrLastNode is wrapped by the error of Drain when no live peer receives from this node.
var ErrLastNode = errors.New("no live peer receives from this node, so that its sessions would be lost (--force drains it nevertheless)")

// Drain takes the node out of service: from now on it is not ready. Without a live peer that
// receives from this node it is an error that wraps ErrLastNode, unless force is set. To
// call it again changes nothing.
func (d *Daemon) Drain(force bool) (Handover, error) {
	if _, drained := d.drain.begun(); !drained && !force {
		if err := d.lastNode(); err != nil {
			return d.Handover(), err
		}
	}
	d.drain.mu.Lock()
	d.drain.forced = d.drain.forced || force
	if d.drain.since.IsZero() {
		now := time.Now()
		d.drain.since, d.drain.changed = now, now
		d.drain.marks, d.drain.done = nil, false
		d.drain.quiet, d.drain.scanned = 0, time.Time{}
		d.drain.waiting, d.drain.cancelled = []string{"a first look"}, ""
		d.log.Warn("drained: not ready from now on, handing over", "forced", force)
	}
	d.drain.mu.Unlock()
	d.publish() // at once: traffic is to go elsewhere
	d.poke()
	return d.Handover(), nil
}

func (d *Daemon) lastNode() error {
	var reasons []string
	for _, c := range d.replicator.Contacts() {
		switch {
		case c.Live && c.Serving:
			return nil
		case c.Live:
			reasons = append(reasons, c.Node+" has no stream from this node")
		}
	}
	if len(reasons) > 0 {
		slices.Sort(reasons)
		return fmt.Errorf("drain: %w: %s", ErrLastNode, strings.Join(reasons, ", "))
	}
	return fmt.Errorf("drain: %w", ErrLastNode)
}

// Undrain puts the node into service again.
func (d *Daemon) Undrain() Handover {
	d.undrain("")
	return d.Handover()
}

// undrain ends a drain, with the reason if no operator asked for it.
func (d *Daemon) undrain(why string) {
	r := &d.drain
	r.mu.Lock()
	if why != "" && r.forced {
		r.mu.Unlock()
		return // an operator has forced it meanwhile
	}
	switch {
	case r.since.IsZero():
	case why != "":
		d.log.Warn("drain cancelled", "reason", why, "hint", "syncd drain --force drains the last node")
	default:
		d.log.Info("drain cancelled")
	}
	if !r.since.IsZero() {
		r.cancelled = why
	}
	r.since, r.marks, r.done, r.waiting = time.Time{}, nil, false, nil
	r.forced, r.peers, r.notHeld = false, 0, nil
	r.mu.Unlock()
	d.publish()
}

// Handover returns how far the node has handed over.
func (d *Daemon) Handover() Handover {
	r := &d.drain
	r.mu.Lock()
	defer r.mu.Unlock()
	return Handover{
		Drained: !r.since.IsZero(), Since: r.since, Done: r.done,
		Waiting: append([]string{}, r.waiting...), Peers: r.peers,
		NotHeld: append([]NotHeld{}, r.notHeld...), Cancelled: r.cancelled,
	}
}

// handOver takes one look. What peers change meanwhile is no business of the
// handover, so what counts are this node's own changes. If all peers leave, the drain ends:
// the last node stays in service.
func (d *Daemon) handOver(now time.Time) {
	marks := d.readMarks()
	peers := d.replicator.Status() // after the marks: it may tell more, not less
	if d.lookAtHandover(marks, peers, now) {
		d.undrain("all peers have left")
	}
}

// lookAtHandover reports whether the drain is to be cancelled.
func (d *Daemon) lookAtHandover(marks []mark, peers []replicate.PeerStatus, now time.Time) (cancel bool) {
	r := &d.drain
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.since.IsZero() {
		return false
	}
	if len(peers) == 0 && !r.forced {
		return true
	}
	if !sameChanges(r.marks, marks) {
		r.marks, r.changed = marks, now
		r.quiet, r.scanned = 0, time.Time{}
	}
	r.waiting, r.peers = behind(r.marks, peers), len(peers)
	r.notHeld = notHeld(r.marks, peers)
	if reason := d.unsettled(r, now); reason != "" {
		r.waiting = append(r.waiting, reason)
	}
	was := r.done
	if r.done = len(r.waiting) == 0; r.done && !was {
		d.logHandover(r, now)
	}
	return false
}

// logHandover says what became of the drain. The lock is held.
func (d *Daemon) logHandover(r *drain, now time.Time) {
	attrs := []any{"peers", r.peers, "seconds", now.Sub(r.since).Seconds()}
	switch {
	case r.peers == 0:
		d.remoteLog.Warn("drained by force without a handover: no peer is live", attrs...)
	case len(r.notHeld) > 0:
		var texts []string
		for i := range r.notHeld {
			texts = append(texts, r.notHeld[i].Text())
		}
		d.remoteLog.Warn("handed over, but peers do not hold all entries", append(attrs, "not_held", strings.Join(texts, "; "))...)
	default:
		d.remoteLog.Info("handed over: every live peer holds what this node held", attrs...)
	}
}

// unsettled says why there may yet be changes of this node. The lock is held.
func (d *Daemon) unsettled(r *drain, now time.Time) string {
	if now.Sub(r.changed) < quietTime {
		return "entries still change here"
	}
	if r.quiet == 0 {
		r.quiet = d.clock.now()
	}
	for _, m := range d.replicas() {
		if !m.repair(r.quiet) {
			return "the map of " + m.name + " is being compared with what is known of it"
		}
	}
	if r.scanned.IsZero() {
		r.scanned = now
	}
	if now.Sub(r.scanned) < readAgain {
		return "what differs is being read again"
	}
	return ""
}

func (d *Daemon) readMarks() (marks []mark) {
	for _, m := range d.replicas() {
		if t, _ := m.current(); t != nil {
			s := t.Stats()
			marks = append(marks, mark{m.name, t, s.LocalAccepted, s.Head})
		}
	}
	return marks
}

// sameChanges reports whether nothing was changed by this node between two looks.
func sameChanges(a, b []mark) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].table != b[i].table || a[i].changes != b[i].changes {
			return false
		}
	}
	return true
}

// behind says which peers have yet to receive what the marks stand for.
func behind(marks []mark, peers []replicate.PeerStatus) []string {
	var waiting []string
	for i := range peers {
		p := &peers[i]
		if !p.Serving {
			waiting = append(waiting, p.Node+" has no stream from this node")
			continue
		}
		for _, m := range marks {
			waiting = append(waiting, m.missingAt(p)...)
		}
	}
	return waiting
}

func (k *mark) missingAt(p *replicate.PeerStatus) []string {
	for i := range p.Maps {
		m := &p.Maps[i]
		switch {
		case m.Name != k.name:
		case m.SendState == replicate.StateExcluded:
			return nil // by the settings
		case !m.Serving:
			return []string{fmt.Sprintf("%s does not receive %s", p.Node, k.name)}
		case m.Acked < k.head:
			return []string{fmt.Sprintf("%s lacks %d changes of %s", p.Node, k.head-m.Acked, k.name)}
		case m.Reporting && (m.Report.At.IsZero() || m.Report.Position < k.head):
			return []string{fmt.Sprintf("%s has yet to report how much it holds of %s", p.Node, k.name)}
		default:
			return nil
		}
	}
	return []string{fmt.Sprintf("%s does not receive %s", p.Node, k.name)}
}

// notHeld returns the entries of the marked maps that peers do not hold.
func notHeld(marks []mark, peers []replicate.PeerStatus) (list []NotHeld) {
	for i := range peers {
		for j := range peers[i].Maps {
			m := &peers[i].Maps[j]
			if m.SendState == replicate.StateExcluded {
				continue
			}
			if !slices.ContainsFunc(marks, func(k mark) bool { return k.name == m.Name }) || m.Serving && m.Reporting && m.Report.NotHeld() == 0 {
				continue
			}
			list = append(list, NotHeld{
				Peer: peers[i].Node, Map: m.Name, Entries: m.Report.NotHeld(), Failed: m.Report.Failed, Refused: m.Report.Refused,
				Live: m.Report.Live, MaxEntries: m.Report.MaxEntries, Unknown: !m.Reporting,
			})
		}
	}
	return list
}
