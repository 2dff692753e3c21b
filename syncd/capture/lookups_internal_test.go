package capture

import (
	"encoding/binary"
	"slices"
	"testing"
	"time"

	"mapsync/syncd/table"
)

// TestLookupsWait: keys of one map that arrive within lookupBatchTime form a batch, which is due lookupDelay after
// its first key, and later than lookupPause after its last one.
func TestLookupsWait(t *testing.T) {
	l := lookups{wake: make(chan struct{}, 1)}
	one, two := &target{keySize: 1}, &target{keySize: 1}
	start := time.Unix(1, 0)
	at := func(d time.Duration) time.Time { return start.Add(d) }
	if _, due, wait := l.takeDue(start); due || wait != 0 {
		t.Errorf("no keys: got a batch %v, wait %s, want none and 0", due, wait)
	}
	l.add(1, one, []byte("a"), start)
	l.add(2, two, []byte("x"), at(time.Millisecond))
	l.add(1, one, []byte("b"), at(lookupBatchTime))
	l.add(1, one, []byte("c"), at(lookupBatchTime+1))
	select {
	case <-l.wake:
	default:
		t.Error("first key: got no wakeup, want one")
	}
	if _, due, wait := l.takeDue(at(lookupDelay - time.Millisecond)); due || wait != time.Millisecond {
		t.Errorf("before the first batch is due: got a batch %v, wait %s, want none and 1ms", due, wait)
	}
	var got []string
	for range 3 {
		b, due, _ := l.takeDue(at(lookupBatchTime + 1 + lookupDelay))
		if !due || b.id == 2 != (b.target == two) {
			t.Fatalf("batch of map %d: got due %v, want true with the target of the map", b.id, due)
		}
		got = append(got, string(b.keys))
	}
	if want := []string{"ab", "x", "c"}; !slices.Equal(got, want) {
		t.Errorf("batches: got %q, want %q", got, want)
	}
	if lookupDelay-lookupBatchTime <= lookupPause+50*time.Millisecond {
		t.Errorf("reread of a batch's last key: got after %s, want after the pause of %s and late jiffies", lookupDelay-lookupBatchTime, lookupPause)
	}
	if l.bytes != 0 {
		t.Errorf("bytes of no keys: got %d, want 0", l.bytes)
	}
}

// TestLookupsAreBounded: keys above maxWaitingBytes are dropped and counted.
func TestLookupsAreBounded(t *testing.T) {
	l := lookups{wake: make(chan struct{}, 1)}
	key := make([]byte, 1<<20)
	one := &target{keySize: len(key)}
	for i := range 20 {
		l.add(1, one, key, time.Unix(int64(i), 0))
	}
	if l.bytes != maxWaitingBytes || l.dropped != 20-16 || len(l.batches) != 16 {
		t.Errorf("20 keys of 1 MiB: got %d bytes in %d batches and %d dropped, want %d in 16 and 4", l.bytes, len(l.batches), l.dropped, maxWaitingBytes)
	}
}

// TestLookedUpRecordsAreReread: of the looked-up keys, those with a live record are reread.
func TestLookedUpRecordsAreReread(t *testing.T) {
	tab := newLookupTable(t, 3)
	tab.Update(func(tx *table.Tx) {
		for tx.TakeRereads(make([]byte, 800)) > 0 { // of new keys
		}
		key := lookupKey(1)
		tx.Local(&table.Change{Key: key, Time: 10, Op: table.OpDelete, Context: table.ContextPacket})
	})
	var keys []byte
	for i := range uint64(4) {
		keys = append(keys, lookupKey(i)...)
	}
	if dropped := (&target{table: tab, keySize: 8}).reread(keys); dropped != 0 {
		t.Errorf("dropped keys: got %d, want 0", dropped)
	}
	tab.Update(func(tx *table.Tx) {
		buf := make([]byte, 800)
		n := tx.TakeRereads(buf)
		if want := append(lookupKey(0), lookupKey(2)...); !slices.Equal(buf[:8*n], want) {
			t.Errorf("keys that are reread: got %x, want %x", buf[:8*n], want)
		}
	})
}

// TestRereadsOfLookupsAreBounded: above maxPendingRereads, keys are dropped and counted.
func TestRereadsOfLookupsAreBounded(t *testing.T) {
	const more = 100
	tab := newLookupTable(t, maxPendingRereads+more)
	tab.Update(func(tx *table.Tx) {
		for tx.TakeRereads(make([]byte, 1<<16)) > 0 {
		}
	})
	var keys []byte
	for i := range uint64(maxPendingRereads + more) {
		keys = append(keys, lookupKey(i)...)
	}
	if dropped := (&target{table: tab, keySize: 8}).reread(keys); dropped != more {
		t.Errorf("keys above the limit: got %d dropped, want %d", dropped, more)
	}
}

func lookupKey(i uint64) []byte { return binary.BigEndian.AppendUint64(nil, i) }

// newLookupTable returns a table with n live records.
func newLookupTable(tb testing.TB, n uint64) *table.Table {
	tb.Helper()
	tab, err := table.New(table.Options{Self: table.Owner{Node: "a", Incarnation: 1}, KeySize: 8, ValueSize: 8})
	if err != nil {
		tb.Fatal(err)
	}
	tab.Update(func(tx *table.Tx) {
		for i := range n {
			tx.Local(&table.Change{Key: lookupKey(i), Value: make([]byte, 8), Time: 1, Op: table.OpUpdate, Context: table.ContextPacket})
		}
	})
	return tab
}

// BenchmarkLookup measures what one reported lookup costs until the table's reread: the key waits, and is requested.
func BenchmarkLookup(b *testing.B) {
	const keys = 4096
	tab := newLookupTable(b, keys)
	l := lookups{wake: make(chan struct{}, 1)}
	to := &target{table: tab, keySize: 8}
	buf := make([]byte, 8*keys)
	all := make([][]byte, keys)
	for i := range all {
		all[i] = lookupKey(uint64(i))
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		l.add(1, to, all[i%keys], time.Unix(0, int64(i)))
		if i%keys == keys-1 {
			batch, _, _ := l.takeDue(time.Unix(60, int64(i)))
			to.reread(batch.keys)
			l.spare = append(l.spare, batch.keys)
			tab.Update(func(tx *table.Tx) { tx.TakeRereads(buf) })
		}
	}
}
