package table

import (
	"syscall"
	"testing"
	"time"
)

// The benchmarks use one million flows. They enter deltas in batches, as capture and the streams do,
// and report the time per delta. cpu-ns/op is the user CPU time of the process. Other load on the
// machine does not change it.

const benchBatch = 512

type bench struct {
	flows
	tab   *Table
	owner OwnerID
	now   int64
	n     int
}

func newBench(b *testing.B, fill bool) *bench {
	b.Helper()
	x := &bench{tab: newFlows(b), now: 1}
	x.tab.Update(func(tx *Tx) {
		x.owner = tx.Intern(peer)
		for i := 0; fill && i < million; i++ {
			x.now += 1000
			x.local(tx, i, i, x.now)
		}
	})
	return x
}

// key returns the number of a flow. The order of the keys is unfriendly to CPU caches.
func (x *bench) key() int {
	x.n++
	x.now += 1000
	return x.n * 514229 % million
}

// cpu returns the user CPU time that the process has consumed.
func cpu(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano())
}

// run calls fn once for each delta, in batches.
func (x *bench) run(b *testing.B, fn func(*Tx)) {
	b.Helper()
	b.ReportAllocs()
	left := 0
	batch := func(tx *Tx) {
		for range left {
			fn(tx)
		}
	}
	n, began := 0, cpu(b)
	for b.Loop() {
		if n++; n == benchBatch {
			left = n
			x.tab.Update(batch)
			n = 0
		}
	}
	left = n
	x.tab.Update(batch)
	b.ReportMetric(float64(cpu(b)-began)/float64(b.N), "cpu-ns/op")
}

func BenchmarkLocalNewKey(b *testing.B) {
	x := newBench(b, false)
	x.run(b, func(tx *Tx) {
		x.n++
		x.now += 1000
		x.local(tx, x.n, x.n, x.now)
		if x.n%million == 0 {
			b.StopTimer()
			x.tab, x.n = newFlows(b), 0 // in the next batch
			b.StartTimer()
		}
	})
}

func BenchmarkLocalUpdate(b *testing.B) {
	x := newBench(b, true)
	x.run(b, func(tx *Tx) {
		x.local(tx, x.key(), x.n, x.now)
	})
}

func BenchmarkLocalUnchanged(b *testing.B) {
	x := newBench(b, true)
	x.run(b, func(tx *Tx) {
		k := x.key()
		x.local(tx, k, k, x.now)
	})
}

func BenchmarkRemoteNewKey(b *testing.B) {
	x := newBench(b, false)
	x.run(b, func(tx *Tx) {
		x.n++
		x.now += 1000
		x.remote(tx, x.n, x.n, x.now, tx.Intern(peer))
		if x.n%million == 0 {
			b.StopTimer()
			x.tab, x.n = newFlows(b), 0
			b.StartTimer()
		}
	})
}

func BenchmarkRemote(b *testing.B) {
	x := newBench(b, true)
	x.run(b, func(tx *Tx) {
		x.remote(tx, x.key(), x.n, x.now, x.owner)
	})
}

// BenchmarkNext reads the records in an order that differs from the order in memory.
func BenchmarkNext(b *testing.B) {
	x := newBench(b, true)
	x.shuffle()
	c := x.tab.NewCursor(0)
	var rec Record
	sum := 0
	x.run(b, func(tx *Tx) {
		if !tx.Next(c, &rec) {
			c.at, c.pos = order, 0
		} else {
			sum += int(rec.Value[0])
		}
	})
}

func (x *bench) shuffle() {
	x.tab.Update(func(tx *Tx) {
		for range million {
			x.local(tx, x.key(), x.n+1, x.now)
		}
	})
}

// BenchmarkRemoteAndWrite merges a batch and writes it, as a receiver does.
func BenchmarkRemoteAndWrite(b *testing.B) {
	x := newBench(b, true)
	c := x.tab.NewCursor(1 << 60)
	type write struct {
		ref     Ref
		version Version
	}
	writes := make([]write, 0, benchBatch)
	var rec Record
	b.ReportAllocs()
	n, began := 0, cpu(b)
	flush := func() {
		x.tab.Update(func(tx *Tx) {
			for range n {
				x.remote(tx, x.key(), x.n, x.now, x.owner)
			}
		})
		writes = writes[:0]
		x.tab.View(func(tx *Tx) {
			for tx.NextDirty(c, &rec) {
				writes = append(writes, write{rec.Ref, rec.Version})
			}
		})
		x.tab.Update(func(tx *Tx) {
			for _, w := range writes {
				tx.Applied(w.ref, w.version, nil)
			}
			tx.SetApplied(c.Position())
		})
		n = 0
	}
	for b.Loop() {
		if n++; n == benchBatch {
			flush()
		}
	}
	flush()
	b.ReportMetric(float64(cpu(b)-began)/float64(b.N), "cpu-ns/op")
	if st := x.tab.Stats(); st.Dirty != 0 {
		b.Fatalf("dirty records after the write: got %d, want 0", st.Dirty)
	}
}

// BenchmarkWrite measures NextDirty and Applied without the merge.
func BenchmarkWrite(b *testing.B) {
	x := newBench(b, true)
	x.shuffle()
	x.tab.Update(func(tx *Tx) { tx.Refill() })
	c := x.tab.NewCursor(0)
	var rec Record
	x.run(b, func(tx *Tx) {
		if tx.NextDirty(c, &rec) {
			tx.Applied(rec.Ref, rec.Version, nil)
			return
		}
		b.StopTimer()
		tx.Refill()
		c.at, c.pos = order, 0
		b.StartTimer()
	})
}

// BenchmarkDeleteAndCreate deletes one key and creates a key that was deleted earlier, in a table of a
// million records. 100,000 deletes take one second of simulated time. The later keys are created from
// compact tombstones. One operation of the last case also updates 15 other keys, which lie between the
// tombstones in the order of changes.
func BenchmarkDeleteAndCreate(b *testing.B) {
	for _, c := range []struct {
		name         string
		ago, updates int
	}{{"soon", 1000, 0}, {"later", 300_000, 0}, {"between updates", 1000, 15}} {
		ago := c.ago
		b.Run(c.name, func(b *testing.B) {
			x := newBench(b, true)
			writer := x.tab.NewCursor(1 << 60)
			flip, updated := 0, 0
			remove := func(tx *Tx) {
				x.set(x.key(), 0)
				x.now += 9000
				tx.Local(&Change{Key: x.flows.key[:], Op: OpDelete, Time: x.now})
				if flip++; flip%benchBatch == 0 {
					tx.NextDirty(writer, &Record{})
					tx.SetApplied(writer.Position())
					for tx.Expire(x.now, benchBatch) {
					}
				}
			}
			x.tab.Update(func(tx *Tx) {
				for range ago {
					remove(tx)
				}
			})
			x.run(b, func(tx *Tx) {
				remove(tx)
				x.local(tx, (x.n-ago)*514229%million, x.n, x.now)
				for range c.updates {
					// Half the key space away from the keys that are deleted now.
					updated++
					x.now += 1000
					x.local(tx, (x.n+million/2+updated%100_000)*514229%million, updated, x.now)
				}
			})
		})
	}
}
