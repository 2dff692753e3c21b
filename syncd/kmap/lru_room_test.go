package kmap

import (
	"errors"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"mapsync/internal/poll"
	"mapsync/syncd/table"
)

// onCPUs calls fn for each of n numbers, on the CPUs of this process in turn. A turn has the given length.
func onCPUs(t *testing.T, n, turn int, fn func(i int)) {
	t.Helper()
	var cpus []unix.CPUSet
	allowed := affinity(t)
	for cpu, left := 0, allowed.Count(); left > 0; cpu++ {
		if allowed.IsSet(cpu) {
			var one unix.CPUSet
			one.Set(cpu)
			cpus, left = append(cpus, one), left-1
		}
	}
	for at := 0; at < n; at += turn {
		release, err := pinToCPUs(&cpus[at/turn%len(cpus)])
		if err != nil {
			t.Fatalf("run on a CPU: %v", err)
		}
		for i := at; i < min(at+turn, n); i++ {
			fn(i)
		}
		release()
	}
}

// TestLRURoom writes as many entries as an LRU map has room for, and then a sixteenth of its size more, from all CPUs in turns of
// several lengths. The kernel evicts none. A map with a list for each CPU needs even turns.
func TestLRURoom(t *testing.T) {
	for _, flags := range []uint32{0, unix.BPF_F_NO_COMMON_LRU} {
		for _, size := range []int{256, 1000, 1024, 5000} {
			for _, turn := range []int{1, 3, 100, 129} {
				m := newKernelMap(t, withFlags(withType(hashSpec(4, 4, uint32(size)), ebpf.LRUHash), flags))
				info, err := Describe(m)
				if err != nil {
					t.Fatal(err)
				}
				room, err := info.LRURoom()
				if err != nil || room < size/2 || room >= size {
					t.Fatalf("room of %d entries: got %d and error %v, want at least half of them", size, room, err)
				}
				if room == size/2 || flags != 0 && turn > 3 {
					continue // of a small map, the lots of the CPUs may be larger
				}
				room += size / 16
				onCPUs(t, room, turn, func(i int) {
					if err := m.Put(uint32(i), uint32(i)); err != nil {
						t.Fatalf("write entry %d: %v", i, err)
					}
				})
				present, value := 0, uint32(0)
				for i := range uint32(room) {
					if m.Lookup(i, &value) == nil {
						present++
					}
				}
				if present != room {
					t.Errorf("map of %d entries with flags %d, turns of %d: got %d of %d entries, want all", size, flags, turn, present, room)
				}
			}
		}
	}
}

// TestRoomOfOtherMaps: a hash map has no limit of its own.
func TestRoomOfOtherMaps(t *testing.T) {
	info, err := Describe(newKernelMap(t, hashSpec(4, 4, 100)))
	if err != nil {
		t.Fatal(err)
	}
	if room, err := info.LRURoom(); room != 0 || err != nil {
		t.Errorf("room of a hash map: got %d and error %v, want 0", room, err)
	}
}

// lruFixture is an LRU map with entries of its load balancer and a table that leaves them room.
func lruFixture(t *testing.T, entries, own int) (b *syncFixture, room int) {
	t.Helper()
	m := openMap(t, newKernelMap(t, withType(hashSpec(testKey, testValue, uint32(entries)), ebpf.LRUHash)), Options{})
	info := m.Info()
	room, err := info.LRURoom()
	if err != nil {
		t.Fatal(err)
	}
	b = newSyncFixture(t, newTable(t, table.Options{LRU: true, MaxEntries: entries, Room: room}), m)
	b.balance(0, own)
	return b, room
}

// balance writes entries like the load balancer, with their events.
func (b *syncFixture) balance(from, to int) {
	b.t.Helper()
	onCPUs(b.t, to-from, 10, func(i int) {
		key, value := entry(from+i, 1, testKey, testValue)
		if err := b.m.m.Put(key, value); err != nil {
			b.t.Fatalf("write an entry of the load balancer: %v", err)
		}
		b.local(from+i, 1, table.ContextPacket)
	})
}

// held returns the number of entries in the kernel map with numbers from first to end, without end.
func (b *syncFixture) held(first, end int) (n int) {
	b.t.Helper()
	for i := first; i < end; i++ {
		key, value := entry(i, 0, testKey, testValue)
		if b.m.m.Lookup(key, value) == nil {
			n++
		}
	}
	return n
}

// TestPeersLeaveRoom: entries of peers use what the entries of this node leave free in an LRU map, and no write of syncd evicts
// an entry of this node. If this node has more entries, those of peers make room. If it has fewer, they return.
func TestPeersLeaveRoom(t *testing.T) {
	const entries, own, peers = 4096, 2000, 3000
	b, room := lruFixture(t, entries, own)
	const first = 100_000
	b.remote(first, first+peers, 1)
	b.awaitFailed(own + peers - room)
	check := func(when string, own int) {
		t.Helper()
		if n := b.held(0, own); n != own {
			t.Errorf("%s: %d of %d entries of this node are in the map, want all", when, n, own)
		}
		poll.Eventually(t, when+": all of the room is used", func() bool { return b.held(first, first+peers) == min(room-own, peers) })
	}
	check("own and other entries", own)
	more := own
	for ; more < own+1000; more += 200 { // below a sixteenth of the map
		b.balance(more, more+200)
		b.awaitFailed(more + 200 + peers - room)
	}
	check("more own entries", more)
	for i := 500; i < more; i++ {
		key, _ := entry(i, 0, testKey, testValue)
		if err := b.m.m.Delete(key); err != nil {
			t.Fatalf("delete an entry of the load balancer: %v", err)
		}
		b.local(i, -1, table.ContextPacket)
	}
	check("fewer own entries", 500)
	if s := b.tab.Stats(); s.Evictions != 0 {
		t.Errorf("evictions: got %d, want none", s.Evictions)
	}
}

// TestChurnBesidePeers: sessions of the load balancer begin and end on all CPUs while peers send more records than there is room
// for. No entry of the load balancer is evicted, because fewer than a sixteenth of the map begin before syncd sees them.
func TestChurnBesidePeers(t *testing.T) {
	const entries, own, peers, first, rounds, turn = 4096, 2000, 3000, 100_000, 150, 60
	b, _ := lruFixture(t, entries, own)
	b.remote(first, first+peers, 1)
	missing := 0
	for round := range rounds {
		oldest := round * turn
		for i := oldest; i < oldest+turn; i++ {
			key, _ := entry(i, 1, testKey, testValue)
			if err := b.m.m.Delete(key); errors.Is(err, ebpf.ErrKeyNotExist) {
				missing++
			} else if err != nil {
				t.Fatalf("delete an entry of the load balancer: %v", err)
			}
			b.local(i, -1, table.ContextPacket)
		}
		b.balance(oldest+own, oldest+own+turn)
		b.remote(first+peers+round*turn, first+peers+(round+1)*turn, 1)
		if round%10 == 0 {
			missing += own - b.held(oldest+turn, oldest+own+turn)
		}
	}
	if missing > 0 {
		t.Errorf("entries of the load balancer: got %d evicted of %d, want none", missing, own+rounds*turn)
	}
	if n := b.held(first, first+peers+rounds*turn); n == 0 {
		t.Error("entries of peers in the map: got none, want those that fit")
	}
}

// TestOwnRecordsDisplacePeers: records of this node that return to a new LRU map displace entries of peers.
func TestOwnRecordsDisplacePeers(t *testing.T) {
	const entries, own, peers = 4096, 3000, 3000
	b, room := lruFixture(t, entries, 0)
	const first = 100_000
	b.remote(first, first+peers, 1)
	poll.Eventually(t, "the records of the peer are written", func() bool { return b.held(first, first+peers) == min(room, peers) })
	for i := range own {
		b.local(i, 1, table.ContextPacket)
	}
	b.stop()
	b.tab.Update((*table.Tx).Refill) // a new map, without entries
	m := openMap(t, newKernelMap(t, withType(hashSpec(testKey, testValue, entries), ebpf.LRUHash)), Options{})
	b = newSyncFixture(t, b.tab, m)
	n, others := 0, 0
	poll.Eventually(t, "the own entries are in the map, and others in the rest of the room", func() bool {
		n, others = b.held(0, own), b.held(first, first+peers)
		return n == own && others == room-own
	}, func() any { return []int{n, others} })
}

// TestEntryOfAnyOriginIsReplaced: the entries of this node fill an LRU map, which also has entries that the table does not show.
// No such entry stays in place of the newer record of a peer: the record replaces it, and then makes room.
func TestEntryOfAnyOriginIsReplaced(t *testing.T) {
	const entries, first, peers = 2048, 100_000, 1000
	b, room := lruFixture(t, entries, 0)
	b.balance(0, room)
	hidden := []int{first, first + 400, first + 999}
	for _, i := range hidden { // without events
		key, value := entry(i, 1, testKey, testValue)
		if err := b.m.m.Put(key, value); err != nil {
			t.Fatalf("write an entry of the load balancer: %v", err)
		}
	}
	b.remote(first, first+peers, 2)
	b.awaitFailed(peers)
	for _, i := range hidden {
		key, _ := entry(i, 2, testKey, testValue)
		if got := make([]byte, testValue); b.m.m.Lookup(key, got) == nil {
			t.Errorf("entry %d: got %x, want none", i, got)
		}
	}
}
