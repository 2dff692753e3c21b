package daemon_test

import (
	"path/filepath"
	"strings"
	"testing"

	"mapsync/internal/poll"
	"mapsync/syncd/daemon"
	"mapsync/syncd/problem"
)

// missing returns the severities of the problem map-missing.
func missing(s *daemon.Status) (list []problem.Severity) {
	for _, p := range s.Problems {
		if p.ID == "map-missing" {
			list = append(list, p.Severity)
		}
	}
	return list
}

// TestOptionalMap: nodes are ready without an optional map, also if only one of them has it. The map replicates once both have it.
func TestOptionalMap(t *testing.T) {
	dir := pinDir(t)
	var nodes [2]*node
	path := func(i int, name string) string { return filepath.Join(dir, string(rune('a'+i))+name) }
	for i := range nodes {
		pinned(t, path(i, "ct"), 8, 8, 100)
		nodes[i] = newNode(t, i+1, "ct="+path(i, "ct"), "v6="+path(i, "v6"))
		nodes[i].config.OptionalMaps = []string{"v6"}
	}
	startPair(t, nodes[0], nodes[1])
	poll.Eventually(t, "the absent map is a notice", func() bool {
		s := nodes[0].status()
		list := missing(&s)
		return len(list) == 1 && list[0] == problem.Notice && s.Maps[1].Optional
	})

	m1 := pinned(t, path(0, "v6"), 8, 8, 100)
	poll.Eventually(t, "the node is ready with the map that its peer lacks", func() bool {
		s := nodes[0].status()
		return s.Maps[1].State == daemon.MapReplicating && s.Ready && len(missing(&s)) == 0
	})
	nodes[0].write(m1, 0, 1, 7)
	key, value := pair(0, 7)
	m2 := pinned(t, path(1, "v6"), 8, 8, 100)
	poll.Eventually(t, "the peer receives the entry", func() bool {
		var v []byte
		return m2.Lookup(key, &v) == nil && string(v) == string(value)
	})
}

// TestEntrySize: a map with entries of another size than in the settings is refused, with both sizes.
func TestEntrySize(t *testing.T) {
	path := filepath.Join(pinDir(t), "ct")
	pinned(t, path, 8, 16, 100)
	n := newNode(t, 1, "ct="+path)
	n.config.Join, n.config.EntrySizes = nil, []string{"ct=8+8"}
	n.start()
	poll.Eventually(t, "the map is refused", func() bool {
		s := n.status()
		return s.Maps[0].State == daemon.MapRefused && strings.Contains(s.Maps[0].Error, "have 8+16 bytes, and entry-size has 8+8")
	})
}
