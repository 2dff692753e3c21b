package daemon

import (
	"context"
	"fmt"
	"strings"
	"time"

	"mapsync/syncd/problem"
)

// watchProblems updates the list of problems until ctx ends, and records contacts with peers.
func (d *Daemon) watchProblems(ctx context.Context) error {
	tick := time.NewTicker(contactInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			d.Status()
		}
	}
}

// starting reports whether the node has yet to find its peers. Its problems are not logged before that.
func (d *Daemon) starting() bool {
	return len(d.config.Join) > 0 && d.membershipReason() != ""
}

// finder collects the problems that the status shows.
type finder struct {
	daemon *Daemon
	status *Status
	list   []problem.Problem
}

// findProblems returns the problems that a status shows. The list of problems in the status is not read.
func (d *Daemon) findProblems(s *Status) []problem.Problem {
	f := &finder{daemon: d, status: s}
	f.node()
	f.files()
	for i := range s.Maps {
		f.mapProblems(&s.Maps[i])
	}
	for i := range s.Peers {
		f.peer(&s.Peers[i])
	}
	f.members()
	return f.list
}

// add adds a problem unless its text is empty.
func (f *finder) add(p problem.Problem) {
	if p.Text != "" {
		f.list = append(f.list, p)
	}
}

func (f *finder) node() {
	s := f.status
	if r := &s.Redundancy; r.Problem != "" {
		p := problem.Problem{ID: "redundancy", Text: r.Problem}
		if r.Expected > 0 {
			p.Text = fmt.Sprintf("%d/%d: %s", r.Live, r.Expected, r.Problem)
		}
		if r.Announced {
			p.Severity = problem.Notice
		}
		f.add(p)
	}
	reasons := s.NotReady
	if h := f.daemon.Handover(); s.Drained && len(reasons) > 0 {
		f.add(problem.Problem{ID: "drained", Text: reasons[len(reasons)-1], Since: h.Since})
		reasons = reasons[:len(reasons)-1]
	}
	f.add(problem.Problem{ID: "not-ready", Text: strings.Join(reasons, "; ")})
	f.add(problem.Problem{ID: "ready-unproven", Text: strings.Join(s.Unproven, "; ")})
	for _, c := range f.daemon.clockProblems() {
		f.add(problem.Problem{ID: "clock", Subject: c.nodes(), Text: c.text()})
	}
	if l := &s.Capture.Losses; l.Open {
		f.add(problem.Problem{ID: "losses-open", Text: fmt.Sprintf("events were lost %s ago, and scans have not found all changes yet", Ago(time.Duration(l.OpenSeconds*float64(time.Second))))})
	}
	if until := s.ScansPausedUntil; !until.IsZero() {
		f.add(problem.Problem{ID: "scans-paused", Text: "scans are paused until " + until.Format(time.RFC3339)})
	}
}

// files adds the problems of files that the daemon reads and writes.
func (f *finder) files() {
	d := f.daemon
	if st := d.state.stats(); !st.Saved && st.Problem != "" {
		f.add(problem.Problem{ID: "state-not-saved", Subject: d.config.StateDir, Text: st.Problem})
	}
	if _, err := d.lastReload(); err != nil {
		f.add(problem.Problem{ID: "settings-not-reloaded", Text: err.Error()})
	}
	for _, a := range d.credentials.Advice() {
		f.add(problem.Problem{ID: "tls-files", Subject: a.File, Text: a.Problem, Remedy: a.Hint})
	}
}

// members adds the problems of nodes that are not peers.
func (f *finder) members() {
	s := f.status
	f.add(problem.Problem{ID: "gossip-unreachable", Text: s.GossipProblem})
	for _, u := range s.Unverified {
		f.add(problem.Problem{ID: "peer-unreachable", Peer: u.Node, Text: fmt.Sprintf("no stream to %s: %s", u.Address, orElse(u.Error, "no attempt yet"))})
	}
}
