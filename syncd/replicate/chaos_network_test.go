package replicate

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"mapsync/internal/poll"
)

// TestChaosOfRoles has four nodes change the same keys while streams break in one direction, one
// node lacks the map, and nodes leave and come back. At the end all nodes hold the same records and
// are in sync.
func TestChaosOfRoles(t *testing.T) {
	const count = 4
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(1, seed))
	nodes, routes := make([]*node, count), make([]blockedRoutes, count)
	for i := range nodes {
		nodes[i] = startKeyedNode(t, fmt.Sprint("n", i), uint64(i+1), routes[i].option)
		nodes[i].r.opt.UnknownGrace = 200 * time.Millisecond
	}
	connectNodes(nodes...)
	without := -1
	restore := func() {
		if without >= 0 {
			n := nodes[without]
			if err := n.r.AddMap(testMap, Layout{KeySize: testKeySize, ValueSize: testValueSize}, n.tb); err != nil {
				t.Fatalf("add map: got error %v, want nil", err)
			}
			without = -1
		}
	}
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) { // the rate of faults and changes
		i := rnd.IntN(count)
		switch rnd.IntN(80) {
		case 0, 1:
			routes[i].set(fmt.Sprint("n", rnd.IntN(count)))
			nodes[rnd.IntN(count)].lis.cut()
		case 2:
			routes[i].set()
		case 3:
			restore()
			nodes[i].r.RemoveMap(testMap)
			without = i
		case 4:
			restore()
		case 5:
			connectNodes(withoutNode(nodes, i)...)
			nodes[i].r.SetPeers(nil)
		case 6, 7:
			connectNodes(nodes...)
		default:
			if i != without { // its hooks report nothing
				applyRandomChanges(nodes[i].tb, rnd)
			}
		}
	}
	restore()
	for i := range routes {
		routes[i].set()
	}
	connectNodes(nodes...)
	converged := func() bool { return tablesEqual(nodes...)() && nodesInSync(nodes...)() }
	// The limit is long for a loaded machine.
	poll.Within(t, 40*time.Second, "the nodes are in sync with equal tables", converged, func() any { return differences(nodes) })
}

// differences describes the synchronisation of the nodes, and the records in which they differ.
func differences(nodes []*node) string {
	var text strings.Builder
	for _, n := range nodes {
		ok, missing := n.r.InSync()
		fmt.Fprintf(&text, "\n%s: %d records, in sync %t %v", n.self.Node, len(live(n.tb)), ok, missing)
	}
	for k, v := range dump(nodes[0].tb) {
		for _, n := range nodes[1:] {
			if w := dump(n.tb)[k]; w != v {
				fmt.Fprintf(&text, "\nkey %x: %s, %s has %s", k, v, n.self.Node, w)
			}
		}
	}
	return text.String()
}

// withoutNode returns the nodes without one of them.
func withoutNode(nodes []*node, i int) []*node {
	rest := append([]*node{}, nodes[:i]...)
	return append(rest, nodes[i+1:]...)
}
