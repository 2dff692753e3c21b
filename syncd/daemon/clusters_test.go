package daemon_test

import (
	"slices"
	"testing"

	"mapsync/internal/poll"
	"mapsync/syncd/problem"
)

// problemOf returns the problem with an id in the status of the node, or nil.
func (n *node) problemOf(id string) *problem.Problem {
	n.t.Helper()
	list := n.status().Problems
	if i := slices.IndexFunc(list, func(p problem.Problem) bool { return p.ID == id }); i >= 0 {
		return &list[i]
	}
	return nil
}

// TestClustersDoNotReplicate: two nodes of different clusters find each other, and neither gossip nor a stream connects them. The
// problem names both clusters, and ends with the wrong setting.
func TestClustersDoNotReplicate(t *testing.T) {
	n1, n2, m1, m2 := twoNodes(t, 100)
	n1.config.Cluster, n2.config.Cluster = "prod", "staging"
	n1.start()
	n2.start()
	poll.Eventually(t, "a node has the problem", func() bool {
		for _, n := range []*node{n1, n2} {
			if p := n.problemOf("cluster-differs"); p != nil {
				n.shows("cluster-differs", problem.Warning, "prod", "staging")
				return true
			}
		}
		return false
	})
	n1.write(m1, 0, 10, 7)
	if len(n1.status().Peers)+len(n2.status().Peers) != 0 || lacks(m2, 10, 7) != 10 {
		t.Error("nodes of different clusters: got peers or entries, want none")
	}
	n2.stop()
	n2.config.Cluster = "prod"
	n2.start()
	poll.Eventually(t, "nodes of one cluster replicate", func() bool { return holds(t, m2, 10, 7) })
}
