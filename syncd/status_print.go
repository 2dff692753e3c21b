package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"mapsync/syncd/daemon"
)

// width is the maximum number of columns of the text output, if names are short enough.
const width = 100

// manyMaps is the number of maps above which maps that are in sync with a peer share a line.
const manyMaps = 8

// printStatus prints a status as text. The most important facts come first: redundancy, readiness
// and losses.
func printStatus(out io.Writer, s *daemon.Status, all bool) error {
	printHeadline(out, s)
	printDaemon(out, s)
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "\nMAP\tSTATE\tLIVE\tMAX\tPENDING\tFAILED\tWRITE\tSCANNED EVERY")
	for i := range s.Maps {
		m := &s.Maps[i]
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\t%d\t%s\t%s\n", m.Name, m.State, m.Live, m.MaxEntries,
			m.Pending, m.Failed, dash(m.Write), scanned(m.Scan))
	}
	printPeers(w, s)
	printPeerMaps(w, s, all)
	if err := w.Flush(); err != nil {
		return err
	}
	if len(s.Problems) > 0 {
		fmt.Fprintln(out, "\nPROBLEMS")
		problemOutput{all: all}.print(out, s.Problems)
	}
	return nil
}

func printHeadline(out io.Writer, s *daemon.Status) {
	r := &s.Redundancy
	if r.Live < r.Expected {
		wrap(out, fmt.Sprintf("REDUNDANCY %d/%d: %s", r.Live, r.Expected, r.Problem))
	}
	node := "node " + s.Node
	if s.Cluster != "" {
		node += ", cluster " + s.Cluster
	}
	switch {
	case !s.Ready:
		fmt.Fprintf(out, "%s: NOT READY%s\n", node, redundancy(r))
	case s.Standalone:
		fmt.Fprintf(out, "%s: ready, standalone\n", node)
	case r.Expected == 0:
		fmt.Fprintf(out, "%s: ready, %d live peers (expected-peers is not set)\n", node, r.Live)
	default:
		fmt.Fprintf(out, "%s: ready%s\n", node, redundancy(r))
	}
	for _, reason := range s.NotReady {
		wrap(out, "  "+reason)
	}
	if len(s.Unproven) > 0 {
		fmt.Fprintln(out, "READY WITHOUT PROOF, since sync-timeout has passed:")
		for _, reason := range s.Unproven {
			wrap(out, "  "+reason)
		}
	}
}

// redundancy returns the number of live peers for the first line, or "" if that line does not
// need it.
func redundancy(r *daemon.Redundancy) string {
	if r.Expected == 0 || r.Live < r.Expected {
		return ""
	}
	return fmt.Sprintf(", redundancy %d/%d", r.Live, r.Expected)
}

func printDaemon(out io.Writer, s *daemon.Status) {
	fmt.Fprintf(out, "up %s, version %s, incarnation %d\n", ago(s.UptimeSeconds), s.Version, s.Incarnation)
	switch {
	case s.Standalone:
		fmt.Fprintln(out, "standalone: no port for peers is open, because the settings have no peers and no certificate")
	case s.TLS:
		fmt.Fprintf(out, "streams are encrypted and verified, certificate ends %s\n", s.CertExpires.Format(time.DateOnly))
	default:
		fmt.Fprintln(out, "streams are NOT encrypted")
	}
	c := &s.Capture
	fmt.Fprintf(out, "capture by %s, %s buffer: %d events, %d lost", c.Attach, c.Buffer, c.Events, c.Lost)
	if !c.SkippedCounted {
		fmt.Fprint(out, " (this kernel does not count skipped runs)")
	}
	fmt.Fprintln(out)
	if c.Lost > 0 {
		fmt.Fprintf(out, "LOST: buffer full %d, perf %d, nested %d, skipped %d\n", c.LostBuffer, c.LostPerf, c.LostNested, c.Skipped)
	}
	if c.Losses.Open {
		fmt.Fprintf(out, "SCANNING because of losses, for %s: peers may lack changes until it is done\n", seconds(c.Losses.OpenSeconds))
	}
}

// printPeers lists the peers, and the nodes that are absent or unverified.
func printPeers(w io.Writer, s *daemon.Status) {
	fmt.Fprintln(w, "\nPEER\tSTATE\tLAST CONTACT\tADDRESS\tCLOCK AHEAD\tROUND TRIP")
	for i := range s.Peers {
		p := &s.Peers[i]
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", p.Node, peerState(p), contact(p.LastContact), p.Address, seconds(p.ClockOffset), seconds(p.RoundTrip))
	}
	for _, a := range s.Absent {
		state := "left"
		switch {
		case a.Expected && a.LastContact.IsZero():
			state = "NEVER SEEN"
		case a.Expected:
			state = "LOST"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t-\t-\t-\n", a.Node, state, contact(a.LastContact))
	}
	if len(s.Peers)+len(s.Absent) == 0 {
		fmt.Fprintln(w, "none")
	}
	for _, u := range s.Unverified {
		fmt.Fprintf(w, "%s\tUNVERIFIED\tnever\t%s\t-\t-\n", u.Node, u.Address)
	}
	printObservers(w, s)
}

// printObservers lists the observers: programs that receive maps and replicate nothing back.
func printObservers(w io.Writer, s *daemon.Status) {
	if len(s.Observers) == 0 {
		return
	}
	fmt.Fprintln(w, "\nOBSERVER\tADDRESS\tSINCE\tMAPS")
	for _, o := range s.Observers {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", o.Name, o.Address, contact(o.Since), dash(strings.Join(o.Maps, " ")))
	}
}

func peerState(p *daemon.PeerStatus) string {
	switch {
	case p.Receiving && p.Sending:
		return "connected"
	case p.Receiving:
		return "NOT SENDING"
	case p.Sending:
		return "NOT RECEIVING"
	}
	return "NO STREAMS"
}

func contact(at time.Time) string {
	if at.IsZero() {
		return "never"
	}
	return daemon.Ago(time.Since(at)) + " ago"
}

// printPeerMaps lists the maps of each peer. Unless all is set, maps that are in sync share a
// line if there are more than manyMaps.
func printPeerMaps(w io.Writer, s *daemon.Status, all bool) {
	if len(s.Peers) == 0 {
		return
	}
	fmt.Fprintln(w, "\nPEER\tMAP\tRECEIVED\tSENT\tIN SYNC\tLAG\tLAG TIME\tNOT HELD\tPEER FILL")
	for i := range s.Peers {
		p := &s.Peers[i]
		maps := p.Maps
		if !all && len(maps) > manyMaps {
			maps = printInSync(w, p)
		}
		for j := range maps {
			printPeerMap(w, p, &maps[j])
		}
	}
}

// printInSync prints one line for the maps in sync, and returns the others.
func printInSync(w io.Writer, p *daemon.PeerStatus) (rest []daemon.PeerMapStatus) {
	count, lag, late := 0, uint64(0), 0.0
	for _, m := range p.Maps {
		if !healthy(p, &m) {
			rest = append(rest, m)
			continue
		}
		count, lag, late = count+1, lag+m.LagEntries, max(late, m.LagSeconds)
	}
	if count > 0 {
		fmt.Fprintf(w, "%s\t%d maps\tcaught_up\tserved\tyes\t%d\t%s\t0\t-\n", p.Node, count, lag, seconds(late))
	}
	return rest
}

// lateSeconds is the lag in seconds from which a map has its own line.
const lateSeconds = 1

func healthy(p *daemon.PeerStatus, m *daemon.PeerMapStatus) bool {
	return p.Sending && m.State == "caught_up" && m.SendState == "served" && inSync(m) == "yes" && m.Error == "" && m.LagSeconds < lateSeconds &&
		(m.Report == nil || m.Report.NotHeld() == 0)
}

// peerFill returns how many entries the peer does not hold, and how many its map has at most: an LRU map may have
// evicted entries of other nodes.
func peerFill(m *daemon.PeerMapStatus) (notHeld, fill string) {
	r := m.Report
	if r == nil {
		return "?", "?"
	}
	return fmt.Sprint(r.NotHeld()), fmt.Sprintf("%d/%d", min(r.Live-min(r.Live, max(r.Failed, r.FailedAll)+r.Evicted), uint64(r.MaxEntries)), r.MaxEntries)
}

func printPeerMap(w io.Writer, p *daemon.PeerStatus, m *daemon.PeerMapStatus) {
	lag, late := fmt.Sprint(m.LagEntries), seconds(m.LagSeconds)
	sent := m.SendState
	if !p.Sending || sent != "served" {
		lag, late = "-", "-" // 0 would wrongly mean that nothing is missing
		sent = "NOT SERVED"
		if m.SendState != "waiting" && p.Sending {
			sent = strings.ToUpper(m.SendState)
		}
	}
	state := m.State
	if state == "refused" || state == "pending" || state == "failed" {
		state = strings.ToUpper(state)
	}
	notHeld, fill := peerFill(m)
	fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", p.Node, m.Name, state, sent, inSync(m), lag, late, notHeld, fill)
}

// scanned returns the effective time between two scans of a map. It is longer than scan-interval
// if the map does not change, or if scan-budget is too low.
func scanned(s *daemon.ScanStatus) string {
	if s == nil {
		return "-"
	}
	return seconds(s.Interval)
}

// inSync returns the result of the last digest comparison with the peer.
func inSync(m *daemon.PeerMapStatus) string {
	switch {
	case m.Incomparable != "":
		return "INCONCLUSIVE"
	case m.Divergent > 0:
		return fmt.Sprintf("%d DIFFER", m.Divergent)
	case !m.Agreed:
		return "not compared yet"
	}
	return "yes"
}

// wrap prints text in lines of at most width columns, if its words are short enough. Lines after
// the first are indented.
func wrap(out io.Writer, text string) {
	body := strings.TrimLeft(text, " ")
	indent := text[:len(text)-len(body)]
	line := indent
	for word := range strings.FieldsSeq(body) {
		if len(line)+1+len(word) > width && strings.TrimSpace(line) != "" {
			fmt.Fprintln(out, line)
			line = indent + "    "
		}
		if strings.TrimSpace(line) != "" {
			line += " "
		}
		line += word
	}
	fmt.Fprintln(out, line)
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func seconds(s float64) string {
	return time.Duration(s * float64(time.Second)).Round(time.Millisecond).String()
}

func ago(s float64) string { return daemon.Ago(time.Duration(s * float64(time.Second))) }
