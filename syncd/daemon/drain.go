package daemon

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"mapsync/syncd/replicate"
	"mapsync/syncd/table"
)

// stableTime is the time without changes at this node after which a handover can be complete.
// Traffic that is being moved away still arrives for a while.
const stableTime = time.Second

// rereadTime is the maximum time from the finding of a scan to the resulting change.
const rereadTime = 200 * time.Millisecond

// Handover is the progress of a drain.
type Handover struct {
	// Drained reports whether the node is out of service. Since is the time when the drain began.
	Drained bool      `json:"drained"`
	Since   time.Time `json:"since,omitzero"`
	// Done reports whether the handover is complete. Nothing has changed here for a second, and a
	// scan since then found no change that the hooks missed. Every live peer has received, and
	// written or refused, all records that this node held at its last change.
	Done bool `json:"done"`
	// Waiting lists the reasons why Done is false, as text for operators.
	Waiting []string `json:"waiting"`
	// Peers is the number of live peers. It is 0 if the node was drained by force without a peer.
	Peers int `json:"peers"`
	// NotHeld lists the entries that live peers reported not to hold.
	NotHeld []NotHeld `json:"not_held"`
	// Ending reports whether the node returns to service: its kernel maps are being refilled. It is
	// drained until then.
	Ending bool `json:"ending,omitempty"`
	// Cancelled is the reason why syncd cancelled the last drain. It is empty if an operator
	// ended it.
	Cancelled string `json:"cancelled,omitempty"`
}

// drain is the state of a drain. A drained node continues to replicate.
type drain struct {
	mu         sync.Mutex
	since      time.Time // zero: in service
	forced     bool      // the drain does not need a live peer
	cancelled  string    // why syncd cancelled the last drain
	changed    time.Time // when this node last changed a map
	stableAt   int64     // ns of the daemon's clock when stableTime had passed since changed; 0: not yet
	scanned    time.Time // when the scans that began after stableAt were complete; zero: not yet
	watermarks []watermark
	done       bool
	waiting    []string
	peers      int
	notHeld    []NotHeld
	peersSeen  bool  // a peer was live since the drain began, or since syncd started
	ending     bool  // the node returns to service once its maps are refilled
	endedAt    int64 // when the last drain was ended, in ns of the daemon's clock; 0: none
}

// watermark is the state of a map after its last change by this node.
type watermark struct {
	name    string
	table   *table.Table
	changes uint64
	head    uint64
}

func (r *drain) begun() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.since.IsZero()
}

// ErrLastNode is wrapped by the error of Drain when no peer can take over a map.
var ErrLastNode = errors.New("no peer can take over, so that sessions would be lost (--force drains the node nevertheless)")

// Drain takes the node out of service: from now on it is not ready. If no peer can take over one of its maps, see Holding,
// Drain returns an error that wraps ErrLastNode, unless force is set. On a drained node, Drain only adds force.
func (d *Daemon) Drain(force bool) (Handover, error) {
	if !d.drain.inProgress() && !force {
		if err := d.requireReceiver(); err != nil {
			return d.Handover(), err
		}
	}
	d.drain.mu.Lock()
	d.drain.forced = d.drain.forced || force
	if d.drain.since.IsZero() || d.drain.ending {
		d.drain.begin(time.Now())
		d.drain.peersSeen = true // otherwise the drain was refused, or it is forced
		d.log.Warn("drain started", "forced", force, "hint", "syncd drain --undo returns the node to service")
	}
	d.state.setDrain(&drainState{d.drain.since, d.drain.forced})
	d.drain.mu.Unlock()
	d.publish() // at once, so that traffic moves to other nodes
	d.poke()
	return d.Handover(), nil
}

// begin begins a drain. The lock is held.
func (r *drain) begin(since time.Time) {
	r.since, r.changed = since, time.Now()
	r.watermarks, r.done, r.ending = nil, false, false
	r.stableAt, r.scanned = 0, time.Time{}
	r.waiting, r.cancelled = []string{"the first check"}, ""
}

// requireReceiver returns an error unless a peer can take over each map.
func (d *Daemon) requireReceiver() error {
	for _, m := range d.replicas() {
		if !m.pausedSince().IsZero() {
			return fmt.Errorf("drain: %w: map %s is paused: `syncd resume %s`", ErrLastNode, m.name, m.name)
		}
	}
	peers := d.replicator.Status()
	if len(peers) == 0 {
		r, _ := d.redundancy(time.Now())
		return fmt.Errorf("drain: %w: %s", ErrLastNode, cmp.Or(r.Problem, "no peer is connected"))
	}
	if reasons, _ := withoutReceiver(d.mapRedundancy(peers), peers); len(reasons) > 0 {
		return fmt.Errorf("drain: %w: %s", ErrLastNode, strings.Join(reasons, "; "))
	}
	return nil
}

// Handover returns how far the node has handed over.
func (d *Daemon) Handover() Handover {
	r := &d.drain
	r.mu.Lock()
	defer r.mu.Unlock()
	return Handover{
		Drained: !r.since.IsZero(), Since: r.since, Done: r.done,
		Waiting: append([]string{}, r.waiting...), Peers: r.peers,
		NotHeld: append([]NotHeld{}, r.notHeld...), Cancelled: r.cancelled, Ending: r.ending,
	}
}

// checkHandover updates the progress of the drain. Only this node's own changes count, because
// peers' changes do not affect the handover. If all peers leave, checkHandover cancels the drain,
// and the last node stays in service.
func (d *Daemon) checkHandover(now time.Time) {
	marks := d.readWatermarks()
	peers := d.replicator.Status() // after the watermarks, so that it is not older than they are
	if reason := d.updateHandover(marks, peers, d.mapRedundancy(peers), now); reason != "" {
		d.undrain(reason)
	}
}

// updateHandover updates the progress. It returns the reason why the drain must be cancelled, or "": it
// is not forced, and all peers have left, or are drained before this node has handed over.
func (d *Daemon) updateHandover(marks []watermark, peers []replicate.PeerStatus, maps []MapRedundancy, now time.Time) (cancel string) {
	r := &d.drain
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.since.IsZero() || r.ending {
		return ""
	}
	r.peersSeen = r.peersSeen || len(peers) > 0
	switch {
	case len(peers) > 0 || r.forced:
	case r.peersSeen || d.pastSyncTimeout(d.followed):
		return "all peers have left"
	default: // syncd has restarted on a drained node
		r.waiting, r.done = []string{"no peer is connected yet"}, false
		return ""
	}
	if !sameChanges(r.watermarks, marks) {
		r.watermarks, r.changed = marks, now
		r.stableAt, r.scanned = 0, time.Time{}
	}
	r.waiting, r.peers = behind(r.watermarks, peers), len(peers)
	r.notHeld = notHeld(r.watermarks, peers)
	if !r.forced && !r.done {
		reasons, drained := withoutReceiver(maps, peers)
		if drained {
			return "all peers are drained"
		}
		r.waiting = append(r.waiting, reasons...)
	}
	if reason := d.pendingChanges(r, now); reason != "" {
		r.waiting = append(r.waiting, reason)
	}
	if len(r.waiting) == 0 {
		r.waiting = d.handOver(r.watermarks)
	}
	was := r.done
	if r.done = len(r.waiting) == 0; r.done && !was {
		d.logHandover(r, now)
	}
	return ""
}

// logHandover logs the result of the drain. The lock is held.
func (d *Daemon) logHandover(r *drain, now time.Time) {
	attrs := []any{"peers", r.peers, "seconds", now.Sub(r.since).Seconds()}
	switch {
	case r.peers == 0:
		d.remoteLog.Warn("drained by force, no live peer to hand over to", append(attrs,
			"hint", "start a peer before this node stops, otherwise its sessions are lost")...)
	case len(r.notHeld) > 0:
		var texts []string
		for i := range r.notHeld {
			texts = append(texts, r.notHeld[i].Text())
		}
		d.remoteLog.Warn("handover complete, peers lack entries", append(attrs, "not_held", strings.Join(texts, "; "),
			"hint", "a failover loses these entries: enlarge the map on the peer; syncd diff lists entries that the peer refuses")...)
	default:
		d.remoteLog.Info("handover complete", attrs...)
	}
}

// pendingChanges returns the reason why this node may still make changes, or "". The lock is
// held.
func (d *Daemon) pendingChanges(r *drain, now time.Time) string {
	if now.Sub(r.changed) < stableTime {
		return "entries still change here"
	}
	if r.stableAt == 0 {
		r.stableAt = d.clock.now()
	}
	for _, m := range d.replicas() {
		if m.scannedSince(r.stableAt) {
			continue
		}
		return d.scanReason(m.name)
	}
	if r.scanned.IsZero() {
		r.scanned = now
	}
	if now.Sub(r.scanned) < rereadTime {
		return "keys that differ are being reread"
	}
	return ""
}

func (d *Daemon) readWatermarks() (marks []watermark) {
	for _, m := range d.replicas() {
		if t, _ := m.current(); t != nil {
			s := t.Stats()
			marks = append(marks, watermark{m.name, t, s.LocalAccepted, s.Head})
		}
	}
	return marks
}

// sameChanges reports whether this node changed nothing between two readings of the watermarks.
func sameChanges(a, b []watermark) bool {
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

// behind returns which peers have not yet received the changes up to the watermarks.
func behind(marks []watermark, peers []replicate.PeerStatus) []string {
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

// withoutReceiver returns the reasons for each map that no peer can take over. drained reports that, for one of them, all peers
// that could do so are drained.
func withoutReceiver(maps []MapRedundancy, peers []replicate.PeerStatus) (reasons []string, drained bool) {
	for i := range maps {
		m := &maps[i]
		if m.Live > 0 {
			continue
		}
		var each []string
		all := len(m.Peers) > 0
		for _, h := range m.Peers {
			each = append(each, h.Reason)
			all = all && h.Drained
		}
		drained = drained || all
		switch {
		case len(each) > 0:
			each = []string{strings.Join(each, ", ")}
		case slices.ContainsFunc(peers, func(p replicate.PeerStatus) bool { return mapOf(&p, m.Map) != nil }):
			each = []string{"no live peer may receive " + m.Map + " (read-from, write-from)"}
		}
		for _, text := range each {
			if !slices.Contains(reasons, text) {
				reasons = append(reasons, text)
			}
		}
	}
	return reasons, drained
}

func (k *watermark) missingAt(p *replicate.PeerStatus) []string {
	for i := range p.Maps {
		m := &p.Maps[i]
		switch {
		case m.Name != k.name:
		case m.SendState == replicate.StateExcluded:
			return nil // excluded by the settings
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
