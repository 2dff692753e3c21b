package daemon

import (
	"fmt"
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
	// nothing that no hook had seen, and that every live peer's kernel maps hold all
	// that this node knew at the last change.
	Done bool `json:"done"`
	// Waiting is what is missing otherwise, for people.
	Waiting []string `json:"waiting"`
}

// drain is the state of a node that an operator takes out of service. It goes on
// replicating.
type drain struct {
	mu      sync.Mutex
	since   time.Time // zero: in service
	changed time.Time // when a map changed last
	quiet   int64     // by the daemon's clock, when that was quietTime ago; 0: it is not
	scanned time.Time // when the scans that began after that were over; zero: they are not
	marks   []mark
	done    bool
	waiting []string
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

// Drain takes the node out of service: from now on it is not ready. To call it
// again changes nothing.
func (d *Daemon) Drain() Handover {
	d.drain.mu.Lock()
	if d.drain.since.IsZero() {
		now := time.Now()
		d.drain.since, d.drain.changed = now, now
		d.drain.marks, d.drain.done = nil, false
		d.drain.quiet, d.drain.scanned = 0, time.Time{}
		d.drain.waiting = []string{"a first look"}
		d.log.Warn("drained: not ready from now on, handing over")
	}
	d.drain.mu.Unlock()
	d.publish() // at once: traffic is to go elsewhere
	d.poke()
	return d.Handover()
}

// Undrain puts the node into service again.
func (d *Daemon) Undrain() Handover {
	d.drain.mu.Lock()
	if !d.drain.since.IsZero() {
		d.log.Info("drained no more")
	}
	d.drain.since, d.drain.marks, d.drain.done, d.drain.waiting = time.Time{}, nil, false, nil
	d.drain.mu.Unlock()
	d.publish()
	return d.Handover()
}

// Handover returns how far the node has handed over.
func (d *Daemon) Handover() Handover {
	r := &d.drain
	r.mu.Lock()
	defer r.mu.Unlock()
	return Handover{
		Drained: !r.since.IsZero(), Since: r.since, Done: r.done,
		Waiting: append([]string{}, r.waiting...),
	}
}

// handOver takes one look. What peers change meanwhile is no business of the
// handover, so what counts are this node's own changes.
func (d *Daemon) handOver(now time.Time) {
	marks := d.readMarks()
	peers := d.replicator.Status() // after the marks: it may tell more, not less
	r := &d.drain
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.since.IsZero() {
		return
	}
	if !sameChanges(r.marks, marks) {
		r.marks, r.changed = marks, now
		r.quiet, r.scanned = 0, time.Time{}
	}
	r.waiting = behind(r.marks, peers)
	if reason := d.unsettled(r, now); reason != "" {
		r.waiting = append(r.waiting, reason)
	}
	was := r.done
	if r.done = len(r.waiting) == 0; r.done && !was {
		d.log.Info("handed over: every live peer holds what this node knew", "seconds", now.Sub(r.since).Seconds())
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
	for _, m := range d.maps {
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
	for _, m := range d.maps {
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

// behind says which peers' kernel maps do not hold what the marks stand for.
func behind(marks []mark, peers []replicate.PeerStatus) []string {
	if len(peers) == 0 {
		return []string{"there is no live peer to hand over to"}
	}
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
		case !m.Serving:
			return []string{fmt.Sprintf("%s does not receive %s", p.Node, k.name)}
		case m.Acked < k.head:
			return []string{fmt.Sprintf("%s lacks %d changes of %s", p.Node, k.head-m.Acked, k.name)}
		default:
			return nil
		}
	}
	return []string{fmt.Sprintf("%s does not receive %s", p.Node, k.name)}
}
