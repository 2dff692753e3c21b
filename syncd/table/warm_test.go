package table

import "testing"

// TestWarmChangesNothing: reading ahead takes any keys and leaves all as it was.
func TestWarmChangesNothing(t *testing.T) {
	tab := newFlows(t)
	var f flows
	keys := [][]byte{{}, {1}, make([]byte, flowKey), make([]byte, 3*flowKey)}
	for i := range 2 * WarmKeys {
		f.set(i, 0)
		keys = append(keys, append([]byte(nil), f.key[:]...))
	}
	for n := range 3 * WarmKeys {
		before := tab.Stats()
		tab.View(func(tx *Tx) {
			tx.Warm(nil)
			tx.Warm(keys)
			tx.Warm(keys[n%len(keys):])
			if tx.changed {
				t.Fatal("the table counts as changed")
			}
		})
		if after := tab.Stats(); after != before {
			t.Fatalf("%+v became %+v", before, after)
		}
		tab.Update(func(tx *Tx) { f.local(tx, n, n, int64(n+1)) })
	}
	checkInvariants(t, tab)
}

// TestTrail: the trail names the record of each position in its reach, also while
// it grows.
func TestTrail(t *testing.T) {
	x := &bench{tab: newFlows(t), now: 1}
	const n = 5 * minTrail
	for i := range 20 * n {
		x.tab.Update(func(tx *Tx) { x.local(tx, i*514229%(n+1), i, int64(i+1)) })
		if i%997 > 0 {
			continue
		}
		tr, reach := &x.tab.trail, 0
		for s := x.tab.meta(order).prev; s != order; s = x.tab.meta(s).prev {
			seq := x.tab.meta(s).seq
			if x.tab.seq-seq >= uint64(len(tr.slots)) {
				break
			}
			if got := tr.slots[seq&uint64(len(tr.slots)-1)]; got != s && i >= 4*n {
				t.Fatalf("position %d of %d is slot %d, the trail of %d says %d", seq, x.tab.seq, s, len(tr.slots), got)
			}
			reach++
		}
		if i >= 4*n && reach < min(n, minTrail) {
			t.Fatalf("the trail of %d reaches %d records of %d", len(tr.slots), reach, n)
		}
	}
}

// warm enters a batch with the keys read ahead, as capture and the streams do.
func (x *bench) warm(b *testing.B, fn func(tx *Tx, key int)) {
	b.Helper()
	b.ReportAllocs()
	var numbers [WarmKeys]int
	var keys [WarmKeys][]byte
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
		tx.Warm(keys[:n])
		for i := range n {
			fn(tx, numbers[i])
		}
	}
	for b.Loop() {
		if n++; n == WarmKeys {
			x.tab.Update(group)
			n = 0
		}
	}
	x.tab.Update(group)
	b.ReportMetric(float64(cpu(b)-began)/float64(b.N), "cpu-ns/op")
}

// BenchmarkLocalUpdateWarm is BenchmarkLocalUpdate with the keys read ahead.
func BenchmarkLocalUpdateWarm(b *testing.B) {
	x := newBench(b, true)
	x.warm(b, func(tx *Tx, key int) { x.local(tx, key, x.n, x.now) })
}

// BenchmarkRemoteWarm is BenchmarkRemote with the keys read ahead.
func BenchmarkRemoteWarm(b *testing.B) {
	x := newBench(b, true)
	x.warm(b, func(tx *Tx, key int) { x.remote(tx, key, x.n, x.now, x.owner) })
}
