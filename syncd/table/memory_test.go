package table

import (
	"encoding/binary"
	"runtime"
	"testing"

	"mapsync/internal/race"
)

const (
	flowKey   = 48 // the sizes of a connection-tracking map in bytes
	flowValue = 176
	million   = 1_000_000
)

func newFlows(tb testing.TB) *Table {
	tb.Helper()
	tab, err := New(Options{Self: self, KeySize: flowKey, ValueSize: flowValue, MaxEntries: million})
	if err != nil {
		tb.Fatal(err)
	}
	return tab
}

// flows creates keys and values without allocations.
type flows struct {
	key   [flowKey]byte
	value [flowValue]byte
}

func (f *flows) set(key, value int) {
	binary.LittleEndian.PutUint64(f.key[20:], uint64(key))
	binary.LittleEndian.PutUint64(f.value[100:], uint64(value))
}

func (f *flows) local(tx *Tx, key, value int, now int64) Outcome {
	f.set(key, value)
	return tx.Local(&Change{Key: f.key[:], Value: f.value[:], Time: now})
}

func (f *flows) remote(tx *Tx, key, value int, now int64, o OwnerID) Outcome {
	f.set(key, value)
	return tx.Remote(&Delta{Key: f.key[:], Value: f.value[:], Version: Version(now), Owner: o}, now, RemoteOptions{})
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestMemory: the table uses at most the size of key and value and 96 bytes per entry. The memory that
// it reports is close to the memory that it uses.
func TestMemory(t *testing.T) {
	race.SkipSequential(t)
	const records = million
	before := heap()
	tab := newFlows(t)
	var f flows
	measure := func(what string, entries int) {
		t.Helper()
		used, reported := heap()-before, tab.Stats().MemoryBytes
		each := float64(used) / float64(entries)
		t.Logf("%s: %.1f bytes an entry, %.1f above key and value; reported %.1f",
			what, each, each-flowKey-flowValue, float64(reported)/float64(entries))
		if each > flowKey+flowValue+96 {
			t.Errorf("%s: got %.1f bytes per entry, want at most %.1f", what, each, float64(flowKey+flowValue+96))
		}
		if diff := float64(reported)/float64(used) - 1; diff > 0.1 || diff < -0.1 {
			t.Errorf("%s: memory: got %d bytes reported, want %d with a difference of at most 10%%", what, reported, used)
		}
	}
	// The index is emptiest after its segments were split, and fullest just before.
	for i, n := 0, records/10; n <= records; n += records / 10 {
		for ; i < n; i++ {
			tab.Update(func(tx *Tx) { f.local(tx, i, i, int64(i+1)) })
		}
		measure("live", n)
	}
	// All records are deleted, and the maximum number of rereads is pending.
	tab.Update(func(tx *Tx) {
		for i := range records {
			f.set(i, 0)
			tx.Local(&Change{Key: f.key[:], Op: OpDelete, CPU: 1, Time: int64(i + 2)})
		}
	})
	if st := tab.Stats(); st.Tombstones != records || st.PendingRereads != records {
		t.Fatalf("tombstones: got %d, %d rereads, want %d of each", st.Tombstones, st.PendingRereads, records)
	}
	measure("tombstones", records)
	// The table reuses the memory of forgotten records: an equal number of new keys needs no
	// additional memory.
	keys := make([]byte, 1024*flowKey)
	tab.Update(func(tx *Tx) {
		for tx.TakeRereads(keys) > 0 {
		}
		for tx.Expire(1<<60, 1000) {
		}
	})
	was := tab.Stats().MemoryBytes
	for i := range records {
		tab.Update(func(tx *Tx) { f.local(tx, -i, i, 1<<61) })
	}
	if is := tab.Stats().MemoryBytes; is > was+was/20 {
		t.Errorf("memory: was %d bytes, got %d after as many new keys, want at most %d", was, is, was+was/20)
	}
	measure("new", records)
	runtime.KeepAlive(tab)
}

// TestNoAllocations: a change, a delta and a read of a record allocate nothing once a table has
// reached its size.
func TestNoAllocations(t *testing.T) {
	race.SkipSequential(t)
	const n = 20_000
	tab := newFlows(t)
	var f flows
	var rec Record
	var owner OwnerID
	now := int64(1)
	tab.Update(func(tx *Tx) { owner = tx.Intern(peer) })
	c := tab.NewCursor(0)
	buf := make([]byte, 64*flowKey)
	step := 0
	advance := func() int { step++; now += 1000; return step % n }
	each := map[string]func(*Tx){
		"local update":   func(tx *Tx) { f.local(tx, advance(), step, now) },
		"local takeover": func(tx *Tx) { f.remote(tx, advance(), step, now, owner); now++; f.local(tx, step%n, -step, now) },
		"remote":         func(tx *Tx) { f.remote(tx, advance(), step, now, owner) },
		"next":           func(tx *Tx) { f.local(tx, advance(), step, now); tx.Next(c, &rec) },
		"write": func(tx *Tx) {
			f.remote(tx, advance(), step, now, owner)
			for tx.NextDirty(c, &rec) {
				tx.Applied(rec.Ref, rec.Version, nil)
			}
			tx.SetApplied(c.Position())
		},
		"delete, expire, create": func(tx *Tx) {
			f.set(advance(), 0)
			tx.Local(&Change{Key: f.key[:], Op: OpDelete, Time: now})
			tx.Expire(now+int64(DefaultTombstoneTTL), 8)
			f.local(tx, step%n, step, now)
		},
		"reread": func(tx *Tx) {
			tx.TakeRereads(buf)
			f.set(advance(), step)
			tx.Local(&Change{Key: f.key[:], Value: f.value[:], Time: now, Context: ContextReread})
		},
		"intern": func(tx *Tx) { tx.Intern(peer); tx.Owner(owner) },
		"get":    func(tx *Tx) { f.set(advance(), 0); tx.Get(f.key[:], &rec) },
	}
	for name, fn := range each {
		apply := func() { tab.Update(fn) }
		for range 2 * n {
			apply()
		}
		if a := testing.AllocsPerRun(n, apply); a != 0 {
			t.Errorf("%s: got %v allocations, want 0", name, a)
		}
	}
	checkInvariants(t, tab)
}
