package replicate

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// TestChaosOfRoles lets four nodes change the same keys while links break in one direction,
// a node goes without the map, and nodes leave and come back. At the end all hold the same,
// and have proven it.
func TestChaosOfRoles(t *testing.T) {
	const count = 4
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(1, seed))
	nodes, routes := make([]*node, count), make([]blocked, count)
	for i := range nodes {
		nodes[i] = keyedNode(t, fmt.Sprint("n", i), uint64(i+1), routes[i].option)
		nodes[i].r.opt.UnknownGrace = 200 * time.Millisecond
	}
	meet(nodes...)
	without := -1
	restore := func() {
		if without >= 0 {
			n := nodes[without]
			if err := n.r.AddMap(testMap, Layout{KeySize: testKeySize, ValueSize: testValueSize}, n.tb); err != nil {
				t.Fatal(err)
			}
			without = -1
		}
	}
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
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
			meet(without1(nodes, i)...)
			nodes[i].r.SetPeers(nil)
		case 6, 7:
			meet(nodes...)
		default:
			if i != without { // its hooks report nothing
				scribble(nodes[i].tb, rnd)
			}
		}
	}
	restore()
	for i := range routes {
		routes[i].set()
	}
	meet(nodes...)
	settled := func() bool { return equal(nodes...)() && agreed(nodes...)() }
	for range 3 { // on a loaded machine
		for range 2000 {
			if settled() {
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
	for _, n := range nodes {
		ok, missing := n.r.Agreed()
		t.Logf("%s: %d records, agreed %t %v", n.self.Node, len(live(n.tb)), ok, missing)
	}
	for k, v := range dump(nodes[0].tb) {
		for _, n := range nodes[1:] {
			if w := dump(n.tb)[k]; w != v {
				t.Logf("key %x: %s | %s has %s", k, v, n.self.Node, w)
			}
		}
	}
	t.Fatal("not equal, or not proven")
}

// without1 returns the nodes but one.
func without1(nodes []*node, i int) []*node {
	rest := append([]*node{}, nodes[:i]...)
	return append(rest, nodes[i+1:]...)
}
