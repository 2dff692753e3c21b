package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"

	"mapsync/printable"
	"mapsync/syncd/daemon"
	"mapsync/syncd/problem"
)

// nodeStatus is the status of a node of the cluster, or the reason why there is none.
type nodeStatus struct {
	daemon.NodeAnswer
	status *daemon.Status // nil: there is none
}

// decodeCluster decodes the answers of nodes to the question about their status.
func decodeCluster(a *daemon.ClusterAnswer) []nodeStatus {
	list := make([]nodeStatus, len(a.Nodes))
	for i, n := range a.Nodes {
		list[i].NodeAnswer = n
		var s daemon.Status
		if list[i].Error = decodeAnswer(&n, &s); list[i].Error == "" && s.Node != n.Node {
			list[i].Error = "its answer is not its own status"
		}
		if list[i].Error == "" {
			list[i].status = &s
		}
	}
	return list
}

// maxObjects is the maximum number of objects in the answer of a node: a short text can be many of them.
const maxObjects = 50_000

// decodeAnswer decodes the answer of a node, or returns why there is none.
func decodeAnswer(n *daemon.NodeAnswer, to any) (failure string) {
	if n.Error != "" {
		return n.Error
	}
	if bytes.Count(n.Answer, []byte("{")) > maxObjects {
		return fmt.Sprintf("its answer has more than %d objects", maxObjects)
	}
	if err := json.Unmarshal(n.Answer, to); err != nil {
		return "its answer cannot be read: " + err.Error()
	}
	return ""
}

// clusterReport is the output of `syncd status --cluster --json`.
type clusterReport struct {
	// OK is true if all nodes answer and none has a problem.
	OK    bool                `json:"ok"`
	Nodes []daemon.NodeAnswer `json:"nodes"`
}

// reportCluster prints the status of all nodes. It returns errReported if a node does not answer or has a problem.
func (o *statusOutput) reportCluster(out io.Writer, a *daemon.ClusterAnswer) (err error) {
	nodes := decodeCluster(a)
	ok := true
	for i := range nodes {
		ok = ok && nodes[i].status != nil && len(nodes[i].status.Problems) == 0
	}
	switch {
	case o.json:
		err = encodeIndented(out, clusterReport{ok, a.Nodes})
	case o.problems:
		o.clusterProblems(out, nodes)
	default:
		err = o.printCluster(out, nodes)
	}
	if err != nil {
		return fmt.Errorf("print status: %w", err)
	}
	if !ok {
		return errReported
	}
	return nil
}

func (o *statusOutput) printCluster(out io.Writer, nodes []nodeStatus) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "NODE\tSTATE\tVERSION\tREDUNDANCY\tENTRIES\tNOT HELD\tLAG TIME\tPROBLEMS")
	for i := range nodes {
		n := &nodes[i]
		if n.status == nil {
			fmt.Fprintf(w, "%s\tNO ANSWER\t-\t-\t-\t-\t-\t-\n", printable.Text(n.Node))
			continue
		}
		s := n.status
		entries, notHeld, lag := clusterFigures(s)
		fmt.Fprintf(w, "%s\t%s\t%s\t%d/%d\t%d\t%d\t%s\t%d\n", printable.Text(n.Node), clusterState(s), printable.Text(s.Version), s.Redundancy.Live, s.Redundancy.Expected, entries, notHeld, seconds(lag), len(s.Problems))
	}
	fmt.Fprintln(w, "\nMAP\tNODE\tSTATE\tENTRIES\tFILL\tPEERS THAT CAN TAKE OVER")
	for i := range nodes {
		if s := nodes[i].status; s != nil {
			printClusterMaps(w, s)
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	o.clusterProblems(out, nodes)
	return nil
}

// clusterState returns the state of a node in one word.
func clusterState(s *daemon.Status) string {
	switch {
	case s.Drained:
		return "DRAINED"
	case !s.Ready:
		return "NOT READY"
	}
	return "ready"
}

// clusterFigures returns the number of entries of a node, how many of its own a peer does not hold, and the longest lag of a peer in
// seconds.
func clusterFigures(s *daemon.Status) (entries int, notHeld uint64, lag float64) {
	for i := range s.Maps {
		entries += s.Maps[i].Live
	}
	for i := range s.Peers {
		for j := range s.Peers[i].Maps {
			m := &s.Peers[i].Maps[j]
			if lag = max(lag, m.LagSeconds); m.Report != nil {
				notHeld += m.Report.NotHeld()
			}
		}
	}
	return entries, notHeld, lag
}

// printClusterMaps prints a line for each map of a node.
func printClusterMaps(w io.Writer, s *daemon.Status) {
	for i := range s.Maps {
		m := &s.Maps[i]
		fill := "-"
		if m.MaxEntries > 0 {
			fill = fmt.Sprintf("%d%%", 100*min(m.Live, m.MaxEntries)/m.MaxEntries)
		}
		held := "-"
		for j := range s.Redundancy.Maps {
			if r := &s.Redundancy.Maps[j]; r.Map == m.Name {
				held = fmt.Sprintf("%d of %d", r.Live, len(r.Peers))
			}
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\t%s\n", printable.Text(m.Name), printable.Text(s.Node), printable.Text(string(m.State)), m.Live, fill, held)
	}
}

// oneLine makes the texts of a problem of another node lines, which cannot pass for those of other nodes.
func oneLine(p *problem.Problem) {
	for _, text := range []*string{&p.ID, (*string)(&p.Severity), &p.Map, &p.Peer, &p.Subject, &p.Text, &p.Remedy, &p.Documentation} {
		*text = printable.Text(problem.OneLine(*text))
	}
	for i := range p.Details {
		p.Details[i] = printable.Text(problem.OneLine(p.Details[i]))
	}
}

// clusterProblems prints the problems of each node.
func (o *statusOutput) clusterProblems(out io.Writer, nodes []nodeStatus) {
	for i := range nodes {
		n := &nodes[i]
		var list []problem.Problem
		if n.status != nil {
			list = n.status.Problems
			for i := range list {
				oneLine(&list[i])
			}
		}
		if n.Error == "" && len(list) == 0 {
			continue
		}
		fmt.Fprintf(out, "\nPROBLEMS OF %s\n", printable.Text(n.Node))
		if n.Error != "" {
			wrap(out, printable.Text("no answer: "+problem.OneLine(n.Error)))
		}
		problemOutput{all: o.all, documented: o.problems}.print(out, list)
	}
}
