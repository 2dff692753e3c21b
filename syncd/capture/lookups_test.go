package capture_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"mapsync/internal/dataplane"
	"mapsync/internal/poll"
	"mapsync/syncd/capture"
	"mapsync/syncd/kmap"
	"mapsync/syncd/table"

	"github.com/cilium/ebpf"
)

// openLookups attaches the hooks, with the one on lookups.
func openLookups(t testing.TB, o capture.Options) *hookedCapture {
	t.Helper()
	tick, err := kmap.TickLength()
	if err != nil {
		t.Fatal(err)
	}
	o.Attach, o.Lookups, o.Tick = capture.AttachFexit, true, tick
	return openHooks(t, o)
}

// watchLookups watches a map and its lookups, and returns its table.
func (h *hookedCapture) watchLookups(t testing.TB, id uint32, keySize, valueSize int) *table.Table {
	t.Helper()
	tab := newTable(t, keySize, valueSize)
	if err := h.Watch(id, tab); err != nil {
		t.Fatal(err)
	}
	if err := h.WatchLookups(id); err != nil {
		t.Fatal(err)
	}
	return tab
}

// TestLookupsAreReported: the hook reports a lookup of each entry once per pause, for each map type. It reports none of
// an absent key, none by syncd or by bpf(2), and none in a map whose lookups are not watched.
func TestLookupsAreReported(t *testing.T) {
	steer(t, busyCPU)
	h := openLookups(t, capture.Options{})
	h.tap(t)
	for _, tt := range []struct {
		typ     ebpf.MapType
		keySize int
	}{
		{ebpf.Hash, 12}, {ebpf.LRUHash, 100}, {ebpf.PerCPUHash, 64}, {ebpf.PerCPUHash, 12}, {ebpf.LRUCPUHash, 64}, {ebpf.LRUCPUHash, 12},
	} {
		t.Run(fmt.Sprintf("%s/%d", tt.typ, tt.keySize), func(t *testing.T) { h.checkLookups(t, tt.typ, tt.keySize) })
	}
	if st := h.Stats(); st.Skipped != 0 {
		t.Errorf("skipped runs of the other hooks: got %d, want 0", st.Skipped)
	}
	markRan(t, "lookups", h)
}

func (h *hookedCapture) checkLookups(t *testing.T, typ ebpf.MapType, keySize int) {
	const keys, valueSize = 100, 24
	// Two hooked functions may call each other in one lookup. Without a common number of the entry, each reports it.
	hooks := 1
	if (typ == ebpf.PerCPUHash || typ == ebpf.LRUCPUHash) && keySize%8 != 0 {
		hooks = 2
	}
	m, id := newHash(t, typ, keySize, valueSize, 4*keys)
	h.watchLookups(t, id, keySize, valueSize)
	p := openDataPlane(t, m, dataplane.Options{Capacity: keys, Endless: true})
	r := openReceiver(t, p)
	for i := range keys {
		key, value := entry(keySize, valueSize, i, i)
		p.Add(dataplane.InPlace, 0, key, value)
	}
	missed := h.Stats().LookupsMissed
	if err := r.Send(p, otherCPU, keys); err != nil {
		t.Fatal(err)
	}
	h.awaitEvents(t)
	if got := h.take(id); len(got) != 0 {
		t.Errorf("events for lookups of absent keys: got %d, want 0", len(got))
	}
	for i := range keys {
		key, value := entry(keySize, valueSize, i, i)
		if err := putEntry(m, key, value); err != nil {
			t.Fatal(err)
		}
	}
	// Before 5.15, the hook also reports lookups by bpf(2).
	if kernelAtLeast(5, 15) {
		startControl(t, m).do(t, "lookup", 0, keys, 0)
	}
	if _, err := p.Run(); err != nil { // by this process
		t.Fatal(err)
	}
	h.awaitEvents(t)
	if got := h.take(id); len(got) != 0 {
		t.Errorf("events for lookups by syncd and by bpf(2): got %d, want 0", len(got))
	}
	// The hook measures pauses by jiffies, which an emulated processor may count late and then all at once.
	var times map[string]int
	pauses, more := 0, keys
	for try := 0; more > 6 && try < 5; try++ { // a pair of keys may share an element of the array
		if try > 0 {
			time.Sleep(capture.LookupPause + 20*time.Millisecond) // the hook reports each key again
		}
		began := time.Now()
		if err := r.Send(p, otherCPU, 6*keys); err != nil {
			t.Fatal(err)
		}
		h.awaitEvents(t)
		pauses = hooks * (2 + int(time.Since(began)/capture.LookupPause))
		times, more = make(map[string]int), 0
		for _, c := range h.take(id) {
			if times[c.Key]++; times[c.Key] == pauses+1 {
				more++
			}
			if c.Op != capture.OpLookup {
				t.Errorf("operation of an event: got %d, want %d", c.Op, capture.OpLookup)
			}
		}
	}
	if missed = h.Stats().LookupsMissed - missed; missed > keys/10 {
		t.Errorf("missed lookups: got %d, want at most %d", missed, keys/10)
	}
	if len(times)+int(missed) < keys {
		t.Errorf("keys with events: got %d, want %d less the %d missed lookups", len(times), keys, missed)
	}
	if more > 6 {
		t.Errorf("keys with more than %d events of 6 lookups: got %d, want at most 6", pauses, more)
	}
	// The pauses of the keys end with the watch.
	h.Unwatch(id)
	h.watchLookups(t, id, keySize, valueSize)
	if err := r.Send(p, otherCPU, keys); err != nil {
		t.Fatal(err)
	}
	h.awaitEvents(t)
	if got := h.take(id); len(got) < keys*9/10 || len(got) > hooks*keys {
		t.Errorf("events of one lookup of each key after the map is watched again: got %d, want %d to %d", len(got), keys*9/10, hooks*keys)
	}
	h.Unwatch(id)
	h.watch(t, id, keySize, valueSize)
	time.Sleep(capture.LookupPause + 20*time.Millisecond) // the hook would report each key again
	if err := r.Send(p, otherCPU, keys); err != nil {
		t.Fatal(err)
	}
	h.awaitEvents(t)
	if got := h.take(id); len(got) != 0 {
		t.Errorf("events of a map whose lookups are not watched: got %d, want 0", len(got))
	}
}

// TestLookupsLeaveRoomForWrites: without a reader, lookups fill half of the buffer at most. Those without an event do
// not count as losses.
func TestLookupsLeaveRoomForWrites(t *testing.T) {
	const keys = 200
	steer(t, busyCPU)
	h := openLookups(t, capture.Options{BufferSize: 4096})
	m, id := newHash(t, ebpf.Hash, 8, 16, keys)
	h.watchLookups(t, id, 8, 16)
	p := openDataPlane(t, m, dataplane.Options{Capacity: keys})
	r := openReceiver(t, p)
	for i := range keys {
		key, value := entry(8, 16, i, i)
		p.Add(dataplane.InPlace, 0, key, value)
		if err := m.Put(key, value); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Send(p, otherCPU, keys); err != nil {
		t.Fatal(err)
	}
	if st := h.Stats(); st.LookupsMissed < keys/2 || st.LookupsMissed >= keys || st.Lost() != 0 {
		t.Errorf("%d lookups with a buffer for less than %d: got %d missed and %d lost events, want more than half and 0",
			keys, keys/2, st.LookupsMissed, st.Lost())
	}
	h.read(t)
	want := keys - int(h.Stats().LookupsMissed)
	poll.Eventually(t, "the reported lookups arrive", func() bool { return h.recorded(id) == want })
	if st := h.Stats(); st.SequenceGaps != 0 || st.Malformed != 0 {
		t.Errorf("events: got %d gaps and %d malformed, want 0", st.SequenceGaps, st.Malformed)
	}
}

// TestChangesInPlaceAreFound: packets change entries in place that syncd has written. Only the hook can find that: scans
// are off, and syncd rereads new keys only of the data plane. The table gets the last change of each entry.
func TestChangesInPlaceAreFound(t *testing.T) {
	const entries, keySize, valueSize = 64, 12, 24
	steer(t, busyCPU)
	h := openLookups(t, capture.Options{})
	m, id := newHash(t, ebpf.Hash, keySize, valueSize, entries)
	tab := h.watchLookups(t, id, keySize, valueSize)
	runCapture(t, h.Capture)
	k, err := kmap.Open(m, kmap.Options{OwnWriteMarks: h.ownWriteMarks})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.Close() })
	syncer, err := kmap.NewSyncer(tab, k, kmap.SyncerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- syncer.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	p := openDataPlane(t, m, dataplane.Options{Capacity: entries, InPlaceOffset: 8})
	r := openReceiver(t, p)
	tab.Update(func(tx *table.Tx) {
		peer := tx.Intern(table.Owner{Node: "peer", Incarnation: 1})
		for i := range entries {
			key, value := entry(keySize, valueSize, i, 0)
			tx.Remote(&table.Delta{Key: key, Value: value, Version: 1, Owner: peer}, time.Now().UnixNano(), table.RemoteOptions{})
		}
	})
	poll.Eventually(t, "the map has all entries", func() bool { return len(keysOf(t, m)) == entries })
	var delays []time.Duration
	// Other work on an emulated machine delays some rounds.
	for round := uint64(1); round <= 6 || slices.Min(delays) > capture.MaxInPlaceDelay && round <= 60; round++ {
		p.Reset()
		for i := range entries {
			key, value := entry(keySize, valueSize, i, 0)
			binary.NativeEndian.PutUint64(value[8:], round)
			p.Add(dataplane.InPlace, 0, key, value)
		}
		if err := r.Send(p, otherCPU, entries); err != nil {
			t.Fatal(err)
		}
		written := time.Now()
		poll.Eventually(t, fmt.Sprintf("the table has change %d of all entries", round), func() bool {
			return countValues(tab, round) == entries
		})
		delays = append(delays, time.Since(written))
		time.Sleep(time.Duration(round%7) * 15 * time.Millisecond) // the next change comes in the pause, too
	}
	slices.Sort(delays)
	if delays[0] > capture.MaxInPlaceDelay {
		t.Errorf("changes in place in %d rounds: got all of a round after %s at the soonest, want %s", len(delays), delays[0], capture.MaxInPlaceDelay)
	}
	printKernel(fmt.Sprintf("all changes in place found after: median %s, longest %s\n", delays[len(delays)/2], delays[len(delays)-1]))
	if st := tab.Stats(); st.Scanned != 0 {
		t.Errorf("entries that scans read: got %d, want 0", st.Scanned)
	}
	markRan(t, "in place", h)
}

// countValues returns the number of live records with a number in bytes 8 to 15 of the value.
func countValues(tab *table.Table, number uint64) (n int) {
	c := tab.NewCursor(0)
	defer c.Close()
	tab.View(func(tx *table.Tx) {
		var rec table.Record
		for tx.Next(c, &rec) {
			if !rec.Delete && binary.NativeEndian.Uint64(rec.Value[8:]) == number {
				n++
			}
		}
	})
	return n
}

// TestCostOfLookupHook prints the cost of a lookup with and without the hook. Under emulation only the proportions
// of the numbers are meaningful.
func TestCostOfLookupHook(t *testing.T) {
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ns per lookup\tunwatched\twatched\tuses noted")
	for _, hooked := range []bool{true, false} {
		name, cost := "no hook", [3]int64{}
		m, id := newHash(t, ebpf.Hash, 48, 176, 64)
		p := openDataPlane(t, m, dataplane.Options{Capacity: 16, RunWrites: 16, Endless: true})
		for i := range 16 {
			key, value := entry(48, 176, i, i)
			p.Add(dataplane.InPlace, 0, key, value)
			if err := m.Put(key, value); err != nil {
				t.Fatal(err)
			}
		}
		var h *hookedCapture
		if hooked {
			name, h = "fexit", openLookups(t, capture.Options{EmitOwn: true, Uses: true})
			h.tap(t)
			cost[0] = writeCost(t, p)
			h.watchLookups(t, id, 48, 176)
		}
		cost[1] = writeCost(t, p)
		if hooked {
			h.Unwatch(id)
			h.watch(t, id, 48, 176)
			if _, err := h.WatchUses(id); err != nil {
				t.Fatal(err)
			}
			cost[2] = writeCost(t, p)
		}
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\n", name, cost[0], cost[1], cost[2])
		if hooked {
			markRan(t, "cost of lookups", h)
			if err := h.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	w.Flush()
	printKernel(text.String())
}

// TestMeasureLookupCost: the measurement of `syncd check` finds that the hook costs time.
func TestMeasureLookupCost(t *testing.T) {
	needAttach(t, capture.AttachFexit)
	tick, err := kmap.TickLength()
	if err != nil {
		t.Fatal(err)
	}
	c, err := capture.MeasureLookupCost(tick)
	if err != nil || c.Other+c.Watched <= 0 || c.Other+c.Uses <= 0 {
		t.Errorf("cost of the hook: got %+v, error %v, want some", c, err)
	}
	printKernel(fmt.Sprintf("cost of the hook on lookups, measured by check: %s in another map, %s in a watched one, %s in one whose uses are noted\n", c.Other, c.Watched, c.Uses))
}
