package daemon_test

import (
	"testing"

	"mapsync/internal/poll"

	"github.com/cilium/ebpf"
)

// replacedMap is a cluster of two nodes. The first one has sessions, and the load balancer of the second one replaces its map.
type replacedMap struct {
	*testing.T
	nodes []*node
	maps  []*ebpf.Map
}

// newReplacedMap returns two nodes that hold the sessions [0, 200) with value 1.
func newReplacedMap(t *testing.T, set func(*node)) *replacedMap {
	t.Helper()
	c := &replacedMap{T: t}
	c.nodes, c.maps = startCluster(t, 2, set)
	c.nodes[0].write(c.maps[0], 0, 200, 1)
	poll.Eventually(t, "the second node has the sessions", func() bool { return holds(t, c.maps[1], 200, 1) })
	return c
}

// change makes the first node's load balancer change 50 sessions and end 50 others, and waits until the second node's map has that.
func (c *replacedMap) change() {
	c.Helper()
	c.nodes[0].write(c.maps[0], 0, 50, 2)
	c.nodes[0].applyEntries(c.maps[0], 50, func(i int) (key, value []byte) { key, _ = pair(uint64(50+i), 0); return key, nil })
	poll.Eventually(c, "the second node has the changes", func() bool { return wrong(c.maps[1], changedSessions) == 0 })
}

// changedSessions returns the value of a session after change. 0: it has ended.
func changedSessions(i uint64) uint64 {
	switch {
	case i < 50:
		return 2
	case i < 100, i >= 200:
		return 0
	}
	return 1
}

// follow moves the pin of the second node to a map, and waits until the node is ready with it and both maps have the content
// want. keep is checked in each reading.
func (c *replacedMap) follow(m *ebpf.Map, want func(i uint64) uint64, keep func()) {
	c.Helper()
	movePin(c.T, c.nodes[1].pin, m)
	c.maps[1] = m
	id := idOf(c.T, m)
	poll.Eventually(c, "the node is ready with the other map", func() bool {
		keep()
		s := c.nodes[1].status()
		return s.Ready && s.Maps[0].ID == id
	})
	poll.Eventually(c, "both maps have the expected content", func() bool {
		keep()
		return wrong(c.maps[0], want)+wrong(c.maps[1], want) == 0
	}, func() any { return [2]int{wrong(c.maps[0], want), wrong(c.maps[1], want)} })
	// A later change is sent after all others.
	for i, n := range c.nodes {
		v := uint64(8 + i)
		n.write(c.maps[i], 1500, 1501, v)
		poll.Eventually(c, "a later change replicates", func() bool { keep(); return lastSession(c.maps[1-i]) == v })
	}
	if n, m := wrong(c.maps[0], want), wrong(c.maps[1], want); n+m > 0 {
		c.Errorf("wrong sessions at the end: got %d and %d, want none", n, m)
	}
}

// lastSession returns the value of session 1500, which wrong does not compare.
func lastSession(m *ebpf.Map) (value uint64) {
	key, _ := pair(1500, 0)
	_ = m.Lookup(key, &value) // 0: there is none
	return value
}

// keepsChanges fails the test if the first node's map loses one of its changes.
func (c *replacedMap) keepsChanges() {
	c.Helper()
	if n := wrong(c.maps[0], changedSessions); n > 0 {
		c.Fatalf("the first node's map: got %d wrong sessions, want 0", n)
	}
}

// TestNewMapSetting: the load balancer of the second node pins a copy of its former map, which is older than changes of the
// first node. The settings new-map and deletes decide which of the two wins, on both nodes.
func TestNewMapSetting(t *testing.T) {
	for name, c := range map[string]struct {
		newMap, deletes []string
		mapWins         bool
	}{
		"table":                    {[]string{"ct=table"}, nil, false},
		"map":                      {[]string{"ct=map"}, nil, true},
		"deletes any":              {nil, []string{"ct=any"}, true},
		"deletes any, and a table": {[]string{"ct=table"}, []string{"ct=any"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := newReplacedMap(t, func(n *node) { n.config.NewMap, n.config.Deletes = c.newMap, c.deletes })
			fresh := copyMap(t, r.maps[1])
			r.change()
			if c.mapWins {
				r.follow(fresh, func(i uint64) uint64 {
					if i < 200 {
						return 1
					}
					return 0
				}, func() {})
				return
			}
			r.follow(fresh, changedSessions, r.keepsChanges)
		})
	}
}

// TestNewMapWithRules: with deletes: any, a new configuration has written the rules of a new map. Changed and added rules win over
// those of a live peer, also if no hook has reported them. Rules that the new map lacks return.
func TestNewMapWithRules(t *testing.T) {
	r := newReplacedMap(t, func(n *node) { n.config.Deletes = []string{"ct=any"} })
	fresh := copyMap(t, r.maps[1])
	want := func(i uint64) uint64 {
		switch {
		case i < 50, i >= 200 && i < 250:
			return 3
		case i < 200:
			return 1
		}
		return 0
	}
	for i := range uint64(250) {
		key, value := pair(i, want(i))
		err := fresh.Put(key, value)
		if i >= 50 && i < 100 {
			err = fresh.Delete(key)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	r.follow(fresh, want, func() {})
}

// TestFormerMapReturns: the load balancer of the second node replaces map A by an empty map B, and pins A again later. The entries
// of A are older than changes of the first node, which win.
func TestFormerMapReturns(t *testing.T) {
	r := newReplacedMap(t, nil)
	former, err := r.maps[1].Clone() // without the pin
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = former.Close() })
	empty, err := ebpf.NewMap(&ebpf.MapSpec{Name: "ct", Type: ebpf.Hash, KeySize: 8, ValueSize: 8, MaxEntries: 2000})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = empty.Close() })
	r.follow(empty, func(i uint64) uint64 {
		if i < 200 {
			return 1
		}
		return 0
	}, func() {})
	r.change()
	if n := entriesWith(t, former, 1); n != 200 {
		t.Fatalf("old entries of the former map: got %d, want 200", n)
	}
	r.follow(former, changedSessions, r.keepsChanges)
}
