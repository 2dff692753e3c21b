package daemon

import (
	"context"
	"fmt"
	"strings"
	"time"

	"mapsync/peers"
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
		case now := <-tick.C:
			d.sampleFields(now)
			d.Status()
		}
	}
}

// starting reports whether the node has yet to find its peers. Its problems are not logged before that.
func (d *Daemon) starting() bool {
	return len(d.config.Join) > 0 && d.membershipReason() != ""
}

// finder collects the problems that a status shows.
type finder struct {
	status *Status
	list   []problem.Problem
}

// StateProblems returns the problems that the other fields of the status show. Problems also has those from events.
func (s *Status) StateProblems() []problem.Problem {
	f := &finder{status: s}
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
	if s.Drained && len(reasons) > 0 {
		f.add(problem.Problem{ID: "drained", Text: reasons[len(reasons)-1], Since: s.DrainedSince})
		reasons = reasons[:len(reasons)-1]
	}
	f.add(problem.Problem{ID: "not-ready", Text: strings.Join(reasons, "; ")})
	f.add(problem.Problem{ID: "ready-unproven", Text: strings.Join(s.Unproven, "; ")})
	for i, text := range s.ClockProblems {
		f.add(problem.Problem{ID: "clock", Subject: s.clockNodes[i], Text: text})
	}
	if l := &s.Capture.Losses; l.Open {
		f.add(problem.Problem{ID: "losses-open", Text: fmt.Sprintf("events were lost %s ago, and scans have not found all changes yet", Ago(time.Duration(l.OpenSeconds*float64(time.Second))))})
	}
	if until := s.ScansPausedUntil; !until.IsZero() {
		f.add(problem.Problem{ID: "scans-paused", Text: "scans are paused until " + until.Format(time.RFC3339)})
	}
}

// unreadStateTime is the time after the start for which a state that could not be read is a problem: its consequences come soon.
const unreadStateTime = 24 * time.Hour

// files adds the problems of files that the daemon reads and writes.
func (f *finder) files() {
	s := f.status
	f.add(problem.Problem{ID: "state-not-saved", Subject: s.StateDir, Text: s.StateProblem})
	if time.Duration(s.UptimeSeconds*float64(time.Second)) < unreadStateTime {
		f.add(problem.Problem{ID: "state-not-read", Subject: s.StateDir, Text: s.StateUnread})
	}
	f.add(problem.Problem{ID: "settings-not-reloaded", Text: s.SettingsProblem})
	if len(s.NeedsRestart) > 0 {
		f.add(problem.Problem{ID: "restart-needed", Text: "changed settings: " + strings.Join(s.NeedsRestart, ", ")})
	}
	f.add(problem.Problem{ID: "tls-not-reloaded", Text: s.TLSProblem})
	for _, p := range s.FileProblems {
		f.add(problem.Problem{ID: "tls-files", Subject: p.File, Text: p.Text, Remedy: p.Remedy})
	}
}

// FileProblem is a problem of a file that is in use.
type FileProblem struct {
	File   string `json:"file"`
	Text   string `json:"text"`
	Remedy string `json:"remedy"`
}

// fillFiles adds the problems of files that the daemon reads and writes.
func (d *Daemon) fillFiles(s *Status) {
	s.StateDir = d.config.StateDir
	st := d.state.stats()
	if s.StateUnread = st.Unread; !st.Saved {
		s.StateProblem = st.Problem
	}
	if _, err := d.lastReload(); err != nil {
		s.SettingsProblem = err.Error()
	}
	s.NeedsRestart = d.reloads.needRestart()
	s.TLSProblem = d.credentials.ReloadProblem()
	for _, a := range d.credentials.Advice() {
		s.FileProblems = append(s.FileProblems, FileProblem{a.File, a.Problem, a.Hint})
	}
}

// gossipProblem returns why this node has found no other one, or an empty text.
func (d *Daemon) gossipProblem() string {
	if err := d.cluster.JoinError(); err != nil {
		return err.Error()
	}
	select {
	case <-d.cluster.Joined():
		if c := d.config; d.cluster.Stats().Joined == 0 && len(c.Join)+len(c.ExpectedPeers) > 0 {
			return "no address in join has led to another node, and no other node has joined this one"
		}
	default: // the first attempt is in progress
	}
	return ""
}

// members adds the problems of nodes that are not peers.
func (f *finder) members() {
	s := f.status
	f.add(problem.Problem{ID: "gossip-unreachable", Text: s.GossipProblem})
	for _, u := range s.Unverified {
		if u.OtherCluster {
			f.add(problem.Problem{ID: "cluster-differs", Peer: u.Node, Text: u.Error})
			continue
		}
		f.add(problem.Problem{
			ID: "peer-unreachable", Peer: u.Node, Text: fmt.Sprintf("no stream to %s: %s", u.Address, orElse(u.Error, "no attempt yet")),
			Remedy: remedyOfRefusal(u.Error),
		})
	}
}

// remedyOfRefusal returns the remedy if err is a failed handshake with a node, whose port is then open. It returns an empty text otherwise.
func remedyOfRefusal(err string) string {
	if !peers.IsRefusal(err) {
		return ""
	}
	return "find the reason in the text, and its remedy in " + problem.Of("connection-refused").Documentation()
}
