package replicate

import (
	"runtime"
	"syscall"
	"testing"
	"time"

	"mapsync/internal/poll"
	"mapsync/syncd/replicate/wire"
	"mapsync/syncd/schema/schematest"
	"mapsync/syncd/table"
)

// fillTable makes n local changes with generation gen in the values.
func fillTable(tb *table.Table, n, gen int) {
	k, v := make([]byte, schematest.ConnectionKeySize), make([]byte, schematest.ConnectionValueSize)
	for from := 0; from < n; from += 256 {
		tb.Update(func(tx *table.Tx) {
			now := time.Now().UnixNano()
			for i := from; i < min(n, from+256); i++ {
				schematest.ConnectionEntry(k, v, i, gen)
				tx.Local(&table.Change{Key: k, Value: v, Time: now})
			}
		})
	}
}

// discardBatches is a stream that discards all messages.
type discardBatches struct {
	responseSender
	last []byte
	keep bool
}

func (d *discardBatches) SendMsg(m any) error {
	out := m.(*wire.SentFrame)
	if d.keep {
		d.last = frameBytes(out)
	}
	out.Free()
	return nil
}

// newBenchOutbound returns the map stream of a table with n records, after the initial full sync.
func newBenchOutbound(b *testing.B, layout Layout, n int) (*outboundMap, *localMap, *discardBatches) {
	b.Helper()
	self := table.Owner{Node: "load-balancer-1", Incarnation: 1}
	r, err := New(Options{Self: self, Dial: noDial})
	if err != nil {
		b.Fatalf("new replicator: got error %v, want nil", err)
	}
	tb := newSizedTable(b, self, schematest.ConnectionKeySize, schematest.ConnectionValueSize, false)
	fillTable(tb, n, 0)
	m, err := newLocalMap(testMap, layout, tb)
	if err != nil {
		b.Fatalf("new local map: got error %v, want nil", err)
	}
	to := &discardBatches{responseSender: discardStream{}}
	s := newOutboundStream(r, table.Owner{Node: "load-balancer-2", Incarnation: 2}, to)
	out := newOutboundMap(s, subscription(1, testMap, layout), allOrphaned)
	out.m, out.enc, out.cursor, out.cancelWake = m, m.newEncoder(self, wire.EncoderOptions{Index: 1}), tb.NewCursor(0), func() {}
	out.restoreDeliveries(true)
	return out, m, to
}

// benchLayouts runs a benchmark with the same entries as opaque bytes and as typed fields.
func benchLayouts(b *testing.B, bench func(*testing.B, Layout)) {
	layout := Layout{KeySize: schematest.ConnectionKeySize, ValueSize: schematest.ConnectionValueSize}
	b.Run("bytes", func(b *testing.B) { bench(b, layout) })
	layout.Schema = schematest.Connection()
	b.Run("typed", func(b *testing.B) { bench(b, layout) })
}

// BenchmarkEncode measures the sending side up to gRPC, for one delta.
func BenchmarkEncode(b *testing.B) { benchLayouts(b, benchEncode) }

func benchEncode(b *testing.B, layout Layout) {
	const n = 100_000
	out, m, _ := newBenchOutbound(b, layout, n)
	b.ReportAllocs()
	b.ResetTimer()
	for done := 0; done < b.N; {
		out.cursor = m.table.NewCursor(0)
		out.sentPosition.Store(0)
		for more := true; more && done < b.N; {
			var err error
			if more, err = out.step(m, time.Now()); err != nil {
				b.Fatalf("step: got error %v, want nil", err)
			}
			done += out.enc.Deltas()
		}
		out.cursor.Close()
	}
	sent := out.s.count.load()
	b.ReportMetric(float64(sent.Bytes)/float64(sent.Deltas), "B/delta")
}

// BenchmarkMerge measures the receiving side from gRPC, for one delta: decoding and merging of new
// keys, or of newer values for existing keys.
func BenchmarkMerge(b *testing.B) { benchLayouts(b, benchMerge) }

func benchMerge(b *testing.B, layout Layout) {
	const n = 100_000
	out, m, to := newBenchOutbound(b, layout, n)
	to.keep = true
	generation := func(gen int) (batches [][]byte) {
		if gen > 0 {
			fillTable(m.table, n, gen)
		}
		for more := true; more; {
			var err error
			if more, err = out.step(m, time.Now()); err != nil {
				b.Fatalf("step: got error %v, want nil", err)
			}
			batches = append(batches, to.last)
		}
		return batches
	}
	first, second := generation(0), generation(1)
	run := func(b *testing.B, known bool) {
		b.ReportAllocs()
		b.StopTimer()
		for done := 0; done < b.N; {
			s, in := newBenchInbound(b, layout)
			batches, before := first, uint64(0)
			if known {
				handleAll(b, s, first, len(first))
				batches, before = second, in.traffic.deltas.Load()
			}
			runtime.GC()
			b.StartTimer()
			handleAll(b, s, batches, (b.N-done+wire.MaxBatchDeltas-1)/wire.MaxBatchDeltas)
			b.StopTimer()
			done += int(in.traffic.deltas.Load() - before)
		}
	}
	b.Run("new", func(b *testing.B) { run(b, false) })
	b.Run("known", func(b *testing.B) { run(b, true) })
}

func newBenchInbound(b *testing.B, layout Layout) (*inboundStream, *inboundMap) {
	b.Helper()
	self := table.Owner{Node: "load-balancer-2", Incarnation: 2}
	r, err := New(Options{Self: self, Dial: noDial})
	if err != nil {
		b.Fatalf("new replicator: got error %v, want nil", err)
	}
	tb := newSizedTable(b, self, schematest.ConnectionKeySize, schematest.ConnectionValueSize, false)
	if err := r.AddMap(testMap, layout, tb); err != nil {
		b.Fatalf("add map: got error %v, want nil", err)
	}
	return newAcceptedStream(r, Peer{Node: "load-balancer-1", Incarnation: 1})
}

func handleAll(b *testing.B, s *inboundStream, batches [][]byte, limit int) {
	b.Helper()
	for _, data := range batches[:min(limit, len(batches))] {
		if err := s.handle(data); err != nil {
			b.Fatalf("handle message: got error %v, want nil", err)
		}
	}
	if err := s.maps[testMap].err; err != nil {
		b.Fatalf("state of the map: got error %v, want nil", err)
	}
}

// BenchmarkEndToEnd replicates deltas from one table to another over gRPC on loopback: first a full
// sync, then changes while they are made. The processor time is that of both sides. In the second
// case it includes making the changes.
func BenchmarkEndToEnd(b *testing.B) {
	const n = 200_000
	bench := func(b *testing.B, live bool) {
		self := table.Owner{Node: "a", Incarnation: 1}
		ours := newSizedTable(b, self, schematest.ConnectionKeySize, schematest.ConnectionValueSize, false)
		fillTable(ours, n, 0)
		node1 := startNode(b, "a", 1, ours)
		deltas := 0
		var cpu, wall time.Duration
		for b.Loop() {
			b.StopTimer()
			theirs := newSizedTable(b, table.Owner{Node: "b", Incarnation: 2}, schematest.ConnectionKeySize, schematest.ConnectionValueSize, false)
			node2 := startNode(b, "b", 2, theirs)
			reached := func() bool { m, _ := node2.status("a", testMap); return m.Received == ours.Stats().Head }
			if live {
				connectNodes(node1, node2)
				poll.Within(b, deadline, "first sync", reached)
			}
			runtime.GC()
			cpu0, wall0 := cpuTime(), time.Now()
			b.StartTimer()
			if live {
				fillTable(ours, n, deltas+1)
			} else {
				connectNodes(node1, node2)
			}
			poll.Within(b, deadline, "synced", reached)
			b.StopTimer()
			cpu += cpuTime() - cpu0
			wall += time.Since(wall0)
			deltas += n
			node2.stop()
			b.StartTimer()
		}
		b.ReportMetric(float64(cpu)/float64(deltas), "cpu-ns/delta")
		b.ReportMetric(float64(deltas)/wall.Seconds(), "deltas/s")
		b.ReportMetric(0, "ns/op")
	}
	b.Run("full_sync", func(b *testing.B) { bench(b, false) })
	b.Run("live", func(b *testing.B) { bench(b, true) })
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
