package wire

import (
	"testing"

	"mapsync/syncd/schema"
	"mapsync/syncd/schema/schematest"
	"mapsync/syncd/table"
)

// benchBatch calls fn with a function that encodes a batch of MaxBatchDeltas connections.
func benchBatch(b *testing.B, fn func(encode func() *SentFrame)) {
	s := schematest.Connection()
	tb, err := table.New(table.Options{Self: table.Owner{Node: "a", Incarnation: 1}, KeySize: s.Key.Size, ValueSize: s.Value.Size})
	if err != nil {
		b.Fatalf("new table: got error %v, want nil", err)
	}
	enc, err := schema.NewEncoder(s, nil)
	if err != nil {
		b.Fatalf("new encoder: got error %v, want nil", err)
	}
	tb.Update(func(tx *table.Tx) {
		k, v := make([]byte, s.Key.Size), make([]byte, s.Value.Size)
		for i := range MaxBatchDeltas {
			schematest.ConnectionEntry(k, v, i, 1)
			tx.Local(&table.Change{Key: k, Value: v, Time: 1})
		}
	})
	e := NewEncoder(EncoderOptions{Index: 1, Origin: tb.Self(), Schema: enc})
	var rec table.Record
	fn(func() *SentFrame {
		c := tb.NewCursor(0)
		defer c.Close()
		tb.View(func(tx *table.Tx) {
			e.Begin(tx, MaxBatchDeltas, schema.Times{})
			for e.Fits() && tx.Next(c, &rec) {
				e.Add(tx, e.Slot(rec.Owner), &rec)
			}
		})
		return e.Finish(0, c.Position(), true)
	})
}

// BenchmarkEncodeBatch measures the encoding of one batch of MaxBatchDeltas.
func BenchmarkEncodeBatch(b *testing.B) {
	benchBatch(b, func(encode func() *SentFrame) {
		b.ReportAllocs()
		for b.Loop() {
			encode().Free()
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*MaxBatchDeltas), "ns/delta")
	})
}

// BenchmarkDecodeBatch measures the decoding of one batch of MaxBatchDeltas, without the conversion of
// keys and values.
func BenchmarkDecodeBatch(b *testing.B) {
	benchBatch(b, func(encode func() *SentFrame) {
		payload, ok := BatchPayload(frameBytes(encode()))
		if !ok {
			b.Fatal("BatchPayload: a batch was not recognised, want it recognised")
		}
		var batch Batch
		group := make([]Delta, table.PrefetchBatch)
		n := 0
		count := func(deltas []Delta) error { n += len(deltas); return nil }
		b.ReportAllocs()
		for b.Loop() {
			if err := batch.Parse(payload); err != nil {
				b.Fatalf("parse batch: got error %v, want nil", err)
			}
			if err := batch.ForEachGroup(group, count); err != nil {
				b.Fatalf("read groups: got error %v, want nil", err)
			}
		}
		if n != b.N*MaxBatchDeltas {
			b.Errorf("decoded deltas: got %d, want %d", n, b.N*MaxBatchDeltas)
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*MaxBatchDeltas), "ns/delta")
	})
}
