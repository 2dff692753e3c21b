package daemon

import (
	"fmt"
	"time"

	"mapsync/syncd/problem"
)

// maxDetails is the maximum number of entries that are listed with a problem. `syncd diff` lists more.
const maxDetails = 5

// missingSumsTime is the time for which drained entries that are missing in the sums are a problem.
const missingSumsTime = time.Hour

// mapProblems adds the problems of a map of this node.
func (f *finder) mapProblems(m *MapStatus) {
	add := func(id, text string) { f.add(problem.Problem{ID: id, Map: m.Name, Text: text}) }
	switch {
	case m.Error != "":
		add("map-refused", m.Error)
	case m.NoFileSystem:
		add("bpf-file-system", m.Waiting)
	case m.State == MapWaiting && m.Waiting != "":
		p := problem.Problem{ID: "map-missing", Map: m.Name, Text: m.Waiting}
		if m.Optional {
			p.Severity, p.Text = problem.Notice, p.Text+" (optional-map)"
		}
		f.add(p)
	}
	if !m.Paused.IsZero() {
		f.add(problem.Problem{ID: "map-paused", Map: m.Name, Text: "no changes are sent or received", Since: m.Paused})
	}
	f.failedWrites(m)
	if c := m.Clear; c != nil {
		add("map-cleared", c.text())
	}
	for _, user := range m.FormerUsers {
		f.add(problem.Problem{ID: "former-map-used", Map: m.Name, Subject: user, Text: user + ", which the current map has replaced"})
	}
	if m.FormerUsersUnknown {
		add("former-maps-unknown", "programs and processes that use a former map cannot be listed")
	}
	for peer, n := range m.AboveLimit {
		f.add(problem.Problem{ID: "records-over-limit", Map: m.Name, Peer: peer, Text: fmt.Sprintf("%d records of the peer do not enter the table (max-records-factor)", n)})
	}
	for _, name := range m.UndetectedPrograms {
		f.add(problem.Problem{ID: "undetected-programs", Map: m.Name, Subject: name, Text: "only scans find the writes of program " + name})
	}
	add("undetected-programs-unknown", m.UndetectedProblem)
	add("in-place-unavailable", m.InPlaceProblem)
	add("metrics-unusable", m.MetricsProblem)
	f.fieldRoles(m)
	f.references(m)
	if s := m.DrainSums; s != nil && time.Since(s.MissingAt) < missingSumsTime {
		add("drain-sums-missing", fmt.Sprintf("drained entries are missing in the sums: %d without room, %d unread, %d calls missed", s.Full, s.Unread, s.MissedCalls))
	}
	if m.Unsent > 0 {
		f.add(problem.Problem{
			ID: "unsent-entries", Map: m.Name, Text: fmt.Sprintf("%d entries cannot be sent to any peer", m.Unsent),
			Details: details(m.Exceptions, m.Unsent),
		})
	}
	if s := m.Scan; s != nil && s.Failing {
		add("scan-failing", "the last scan failed; it is retried every second")
	} else if s != nil && s.Late {
		add("scan-late", fmt.Sprintf("a scan takes %s", time.Duration(s.Last*float64(time.Second)).Round(time.Second)))
	}
}

// failedWrites adds the problem of entries that do not go into the kernel map. An LRU map without room for all nodes is
// full in normal operation.
func (f *finder) failedWrites(m *MapStatus) {
	switch {
	case m.Failed == 0:
	case m.Type == mapTypeLRU && m.LastFailure == "full":
		f.add(problem.Problem{ID: "map-too-small", Map: m.Name, Text: fmt.Sprintf("%d entries of peers have no room in the LRU map (%d records for %d entries)",
			m.Failed, m.Live, m.MaxEntries)})
	case m.LastFailure == "memory":
		f.add(problem.Problem{
			ID: "failed-writes", Map: m.Name, Text: fmt.Sprintf("%d entries do not go into the kernel map, because the kernel has no memory for them (%d records for %d entries)",
				m.Failed, m.Live, m.MaxEntries),
			Remedy: "raise the memory limit of the load balancer's cgroup, which the kernel charges for the entries, or free memory of the host",
		})
	case m.LastFailure == "id":
		f.add(problem.Problem{
			ID: "failed-writes", Map: m.Name, Text: fmt.Sprintf("%d entries do not go into the kernel map, because a referenced map of this node lacks what their ids mean", m.Failed),
			Remedy: "let the load balancers of all nodes have the same entries in the referenced map, for example the same backends",
		})
	default:
		f.add(problem.Problem{ID: "failed-writes", Map: m.Name, Text: fmt.Sprintf("%d entries do not go into the kernel map (%d records for %d entries)",
			m.Failed, m.Live, m.MaxEntries)})
	}
}

// text describes a clear of a map.
func (c *ClearStatus) text() string {
	by := "an unknown process"
	if c.Process != 0 {
		by = fmt.Sprintf("process %d", c.Process)
	}
	state := "and are being restored"
	if c.Restored {
		state = "and are restored"
	}
	return fmt.Sprintf("%d entries were cleared by %s at %s %s; release deletes them on all nodes, restore keeps them",
		c.Entries, by, c.At.Format(time.RFC3339), state)
}

// details returns one line for each of the first exceptions, and the number of the others of count.
func details(list []Exception, count int) (lines []string) {
	for _, x := range list[:min(len(list), maxDetails)] {
		lines = append(lines, x.Entry+": "+x.Reason)
	}
	if more := count - len(lines); more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", more))
	}
	return lines
}
