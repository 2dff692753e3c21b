package daemon_test

import (
	"path/filepath"
	"testing"
	"time"

	"mapsync/internal/injector"
	"mapsync/internal/poll"
	"mapsync/syncd/daemon"
	"mapsync/syncd/table"

	"github.com/cilium/ebpf"
)

// lruNodes returns two nodes, each with an LRU map. Scans are disabled in effect: only events and
// requests of the test change the tables.
func lruNodes(t *testing.T, entries uint32) (n1, n2 *node, m1, m2 *ebpf.Map) {
	t.Helper()
	dir := pinDir(t)
	one, two := filepath.Join(dir, "one"), filepath.Join(dir, "two")
	spec := &ebpf.MapSpec{Name: "ct", Type: ebpf.LRUHash, KeySize: 8, ValueSize: 8, MaxEntries: entries}
	m1, m2 = pinnedAs(t, one, spec.Copy()), pinnedAs(t, two, spec.Copy())
	n1, n2 = newNode(t, 1, "ct="+one), newNode(t, 2, "ct="+two)
	n1.config.ScanInterval, n2.config.ScanInterval = time.Hour, time.Hour
	startPair(t, n1, n2)
	return n1, n2, m1, m2
}

// 20,000 flows enter an LRU map of 1,024 entries and are evicted. No flow is deleted. The tables
// of both nodes stay in proportion to the map.
func TestLRUMapIsBounded(t *testing.T) {
	const flows, entries = 20_000, 1024
	n1, n2, m1, _ := lruNodes(t, entries)
	write, err := injector.Open(m1, n1.capture.Maps(), injector.Options{Capacity: 200})
	if err != nil {
		t.Fatal(err)
	}
	defer write.Close()
	evict, err := injector.Open(m1, n1.capture.Maps(), injector.Options{Capacity: 4096, SkipWrite: true})
	if err != nil {
		t.Fatal(err)
	}
	defer evict.Close()
	held := map[uint64]bool{}
	for i := uint64(0); i < flows; {
		write.Reset()
		for range 200 {
			k, v := pair(i, 1)
			write.Add(table.OpUpdate, table.ContextPacket, k, v)
			held[i] = true
			i++
		}
		if _, err := write.Run(); err != nil {
			t.Fatal(err)
		}
		reportEvicted(t, m1, evict, held)
		time.Sleep(2 * time.Millisecond) // the rate of new flows
	}
	for _, n := range []*node{n1, n2} {
		poll.Eventually(t, n.config.NodeName+" has at most twice the records of the map", func() bool {
			live := n.status().Maps[0].Live
			return live >= len(held) && live <= 2*entries
		})
		expired := 0
		err := n.client.Entries(t.Context(), "ct", daemon.EntryQuery{Tombstones: true}, func(e *daemon.Entry) error {
			if e.Expired {
				expired++
			}
			if e.Expired != e.Deleted {
				t.Errorf("entry %s: got expired %v, deleted %v, want them equal", e.Key, e.Expired, e.Deleted)
			}
			return nil
		})
		if err != nil || expired == 0 {
			t.Errorf("%s: got %d expired records, error %v, want at least 1", n.config.NodeName, expired, err)
		}
	}
}

// reportEvicted reports the entries that a map has lost as evictions, like the hook on
// htab_lru_map_delete_node.
func reportEvicted(t *testing.T, m *ebpf.Map, events *injector.Injector, held map[uint64]bool) {
	t.Helper()
	now := map[uint64]bool{}
	var k, v uint64
	for it := m.Iterate(); it.Next(&k, &v); {
		now[k] = true
	}
	events.Reset()
	for k := range held {
		if !now[k] {
			key, _ := pair(k, 0)
			events.Add(table.OpEvict, table.ContextPacket, key, nil)
			delete(held, k)
		}
	}
	if _, err := events.Run(); err != nil {
		t.Fatal(err)
	}
}

// Entries that an LRU map evicted are absent when syncd restarts. The restart does not delete
// them from the peer's map.
func TestEvictionsSurviveARestart(t *testing.T) {
	n1, _, m1, m2 := lruNodes(t, 1000)
	n1.write(m1, 0, 500, 7)
	poll.Eventually(t, "the peer's map holds all entries", func() bool { return holds(t, m2, 500, 7) })
	n1.waitIdentitySaved(m1)
	for i := range uint64(100) {
		k, _ := pair(i, 0)
		if err := m1.Delete(k); err != nil {
			t.Fatal(err)
		}
	}
	n1.stop()
	n1.start()
	poll.Eventually(t, "the node is ready", func() bool { return n1.status().Ready })
	n1.write(m1, 900, 901, 7) // sent after the changes of the restart
	poll.Eventually(t, "the peer holds the later entry", func() bool { return has(m2, 900) })
	poll.Eventually(t, "the table has all records again", func() bool { return n1.status().Maps[0].Live == 501 })
	if n := lacks(m2, 500, 7); n > 0 {
		t.Errorf("evicted entries that the peer lacks after a restart: got %d, want 0", n)
	}
}

func has(m *ebpf.Map, i uint64) bool {
	k, _ := pair(i, 0)
	var v [8]byte
	return m.Lookup(k, &v) == nil
}
