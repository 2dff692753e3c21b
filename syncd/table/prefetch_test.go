package table

import "testing"

// TestPrefetchChangesNothing: Prefetch accepts any keys and does not change the table.
func TestPrefetchChangesNothing(t *testing.T) {
	tab := newFlows(t)
	var f flows
	keys := [][]byte{{}, {1}, make([]byte, flowKey), make([]byte, 3*flowKey)}
	for i := range 2 * PrefetchBatch {
		f.set(i, 0)
		keys = append(keys, append([]byte(nil), f.key[:]...))
	}
	for n := range 3 * PrefetchBatch {
		before := tab.Stats()
		tab.View(func(tx *Tx) {
			tx.Prefetch(nil)
			tx.Prefetch(keys)
			tx.Prefetch(keys[n%len(keys):])
			if tx.changed {
				t.Fatal("Prefetch: got a changed table, want no change")
			}
		})
		if after := tab.Stats(); after != before {
			t.Fatalf("Prefetch: stats %+v became %+v, want no change", before, after)
		}
		tab.Update(func(tx *Tx) { f.local(tx, n, n, int64(n+1)) })
	}
	checkInvariants(t, tab)
}

// TestRecentSlots: the ring of recent slots maps each position that it covers to its record, also
// while it grows.
func TestRecentSlots(t *testing.T) {
	x := &bench{tab: newFlows(t), now: 1}
	const n = 5 * minRecent
	for i := range 20 * n {
		x.tab.Update(func(tx *Tx) { x.local(tx, i*514229%(n+1), i, int64(i+1)) })
		if i%997 > 0 {
			continue
		}
		tr, reach := &x.tab.recent, 0
		for s := x.tab.meta(order).prev; s != order; s = x.tab.meta(s).prev {
			seq := x.tab.meta(s).seq
			if x.tab.seq-seq >= uint64(len(tr.slots)) {
				break
			}
			if got := tr.slots[seq&uint64(len(tr.slots)-1)]; got != s && i >= 4*n {
				t.Fatalf("position %d of %d: got slot %d in the ring of %d recent slots, want slot %d",
					seq, x.tab.seq, got, len(tr.slots), s)
			}
			reach++
		}
		if i >= 4*n && reach < min(n, minRecent) {
			t.Fatalf("ring of %d recent slots: got %d records, want at least %d", len(tr.slots), reach, min(n, minRecent))
		}
	}
}

// runPrefetched enters a batch and prefetches the keys, as capture and the streams do.
func (x *bench) runPrefetched(b *testing.B, fn func(tx *Tx, key int)) {
	b.Helper()
	b.ReportAllocs()
	var numbers [PrefetchBatch]int
	var keys [PrefetchBatch][]byte
	for i := range keys {
		keys[i] = make([]byte, flowKey)
	}
	n, began := 0, cpu(b)
	group := func(tx *Tx) {
		for i := range n {
			numbers[i] = x.key()
			x.set(numbers[i], 0)
			copy(keys[i], x.flows.key[:])
		}
		tx.Prefetch(keys[:n])
		for i := range n {
			fn(tx, numbers[i])
		}
	}
	for b.Loop() {
		if n++; n == PrefetchBatch {
			x.tab.Update(group)
			n = 0
		}
	}
	x.tab.Update(group)
	b.ReportMetric(float64(cpu(b)-began)/float64(b.N), "cpu-ns/op")
}

// BenchmarkLocalUpdatePrefetched is BenchmarkLocalUpdate with prefetched keys.
func BenchmarkLocalUpdatePrefetched(b *testing.B) {
	x := newBench(b, true)
	x.runPrefetched(b, func(tx *Tx, key int) { x.local(tx, key, x.n, x.now) })
}

// BenchmarkRemotePrefetched is BenchmarkRemote with prefetched keys.
func BenchmarkRemotePrefetched(b *testing.B) {
	x := newBench(b, true)
	x.runPrefetched(b, func(tx *Tx, key int) { x.remote(tx, key, x.n, x.now, x.owner) })
}
