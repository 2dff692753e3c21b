package main

import (
	"fmt"
	"io"
	"slices"
	"time"

	"mapsync/syncd/daemon"
)

// maxShown is the maximum number of exceptions that are printed for one problem. --json and
// `syncd diff` print more.
const maxShown = 5

// printProblems prints each problem once, with the maps that it concerns.
func printProblems(out io.Writer, s *daemon.Status) {
	var p problems
	p.add("gossip", "", s.GossipProblem)
	for _, text := range s.ClockProblems {
		p.add("clock", "", text)
	}
	if until := s.ScansPausedUntil; !until.IsZero() {
		p.add("scans", "", "paused until "+until.Format(time.RFC3339)+": changes that no hook reports are not replicated, losses are not repaired (`syncd scans resume`)")
	}
	for i := range s.Maps {
		p.local(&s.Maps[i])
	}
	for i := range s.Peers {
		p.peer(&s.Peers[i])
	}
	if len(p) > 0 {
		fmt.Fprintln(out, "\nPROBLEMS")
	}
	for _, each := range p {
		subject := each.subject
		if len(each.maps) > 0 {
			subject += " " + daemon.MapNames(each.maps)
		}
		wrap(out, subject+": "+each.text)
		for _, line := range each.details {
			wrap(out, "  "+line)
		}
	}
}

// problems are the problems of a node, each with the maps that it concerns.
type problems []problem

type problem struct {
	subject, text string
	maps, details []string
}

// add adds a problem of a map, unless the text is empty. If the same problem without details
// exists already, add only adds the name of the map to it.
func (p *problems) add(subject, name, text string, details ...string) {
	if text == "" {
		return
	}
	i := -1
	if len(details) == 0 {
		i = slices.IndexFunc(*p, func(o problem) bool { return o.subject == subject && o.text == text })
	}
	if i < 0 {
		i = len(*p)
		*p = append(*p, problem{subject: subject, text: text, details: details})
	}
	if each := &(*p)[i]; name != "" && !slices.Contains(each.maps, name) {
		each.maps = append(each.maps, name)
	}
}

func (p *problems) local(m *daemon.MapStatus) {
	p.add("map", m.Name, m.Error)
	if m.Failed > 0 {
		p.add("map", m.Name, fmt.Sprintf("%d entries do not go into the kernel map (%d records for %d entries)", m.Failed, m.Live, m.MaxEntries))
	}
	for _, name := range m.UndetectedPrograms {
		p.add("map", m.Name, "only scans find the writes of program "+name)
	}
	if m.UndetectedProblem != "" {
		p.add("map", m.Name, "the programs whose writes only scans find are unknown: "+m.UndetectedProblem)
	}
	if s := m.DrainSums; s != nil && s.Full+s.Unread+s.MissedCalls > 0 {
		p.add("map", m.Name, fmt.Sprintf("drained entries are missing in the sums: %d without room, %d unread, %d calls missed", s.Full, s.Unread, s.MissedCalls))
	}
	if m.InPlaceProblem != "" {
		p.add("map", m.Name, "only scans find changes in place: "+m.InPlaceProblem)
	}
	if m.Unsent > 0 {
		p.add("map", m.Name, fmt.Sprintf("%d entries cannot be sent to any peer", m.Unsent), shown(m.Exceptions, m.Unsent)...)
	}
}

func (p *problems) peer(s *daemon.PeerStatus) {
	if !s.Receiving {
		p.add("peer "+s.Node, "", s.Error)
	}
	subject := "peer " + s.Node + ", map"
	for i := range s.Maps {
		m := &s.Maps[i]
		p.add(subject, m.Name, m.Error)
		p.add(subject, m.Name, unserved(s, m))
		if m.Incomparable != "" {
			p.add(subject, m.Name, "cannot be compared: "+m.Incomparable)
		}
		if m.FalseDigests {
			p.add(subject, m.Name, "its digests stay false: it lacks changes of other nodes, or is hostile; `syncd diff MAP --peer "+s.Node+"` lists the entries that differ")
		}
		if m.Divergent > 0 {
			p.add(subject, m.Name, "entries differ, `syncd diff MAP --peer "+s.Node+"` lists them")
		}
		if m.Refused > 0 {
			p.add(subject, m.Name, fmt.Sprintf("%d entries of the peer cannot be held here", m.Refused), shown(m.Exceptions, m.Refused)...)
		}
		if m.PeerUnsent > 0 {
			p.add(subject, m.Name, fmt.Sprintf("%d entries cannot be sent by the peer, `syncd status` there lists them", m.PeerUnsent))
		}
		p.reported(subject, m)
	}
}

// unserved returns why a map is not replicated with a peer whose streams are up, or "".
func unserved(s *daemon.PeerStatus, m *daemon.PeerMapStatus) string {
	switch {
	case m.Error != "":
		return "" // the error is printed already
	case s.Receiving && m.State == "pending":
		return "the peer does not have the map"
	case s.Sending && m.SendState == "refused":
		return "refused to the peer: its map cannot hold the entries of this one"
	case s.Sending && s.Receiving && m.SendState == "waiting":
		return "not sent: the peer has not subscribed to it"
	}
	return ""
}

// reported adds the entries that the peer reported not to hold.
func (p *problems) reported(subject string, m *daemon.PeerMapStatus) {
	r := m.Report
	switch {
	case r == nil:
		return
	case r.Failed > 0:
		p.add(subject, m.Name, fmt.Sprintf("%d entries do not go into the peer's kernel map (%d records for %d entries)", r.Failed, r.Live, r.MaxEntries))
	}
	if r.Refused > 0 {
		p.add(subject, m.Name, fmt.Sprintf("%d entries of this node cannot be held by the peer", r.Refused), shown(r.Exceptions, int(r.Refused))...)
	}
}

// shown returns one line for each of the first exceptions, and the number of the others of count.
func shown(list []daemon.Exception, count int) (lines []string) {
	for _, x := range list[:min(len(list), maxShown)] {
		lines = append(lines, x.Entry+": "+x.Reason)
	}
	if more := count - len(lines); more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", more))
	}
	return lines
}
