package replicate

import (
	"testing"

	"google.golang.org/grpc/mem"

	"mapsync/syncd/replicate/wire"
	"mapsync/syncd/schema"
	"mapsync/syncd/schema/schematest"
	"mapsync/syncd/table"
)

// TestStreamEncoderToDecoder replicates the records of a table, and then changes, with the two
// halves of a stream.
func TestStreamEncoderToDecoder(t *testing.T) {
	t.Run("bytes", func(t *testing.T) { testEncoderToDecoder(t, nil) })
	t.Run("typed", func(t *testing.T) { testEncoderToDecoder(t, schematest.Connection()) })
}

func testEncoderToDecoder(t *testing.T, s *schema.Schema) {
	from := newSizedTable(t, table.Owner{Node: "a", Incarnation: 1}, schematest.ConnectionKeySize, schematest.ConnectionValueSize, false)
	to := newSizedTable(t, table.Owner{Node: "b", Incarnation: 2}, schematest.ConnectionKeySize, schematest.ConnectionValueSize, false)
	e, err := NewStreamEncoder(from, s, 0)
	if err != nil {
		t.Fatalf("new stream encoder: got error %v, want nil", err)
	}
	defer e.Close()
	d, err := NewStreamDecoder(to, s, from.Self())
	if err != nil {
		t.Fatalf("new stream decoder: got error %v, want nil", err)
	}
	const n = 3 * wire.MaxBatchDeltas
	for gen := range 3 {
		fillTable(from, n, gen)
		for more := true; more; {
			more, err = e.Next(func(m mem.BufferSlice) {
				whole := make([]byte, m.Len())
				m.CopyTo(whole)
				if err := d.Merge(whole); err != nil {
					t.Fatalf("merge: got error %v, want nil", err)
				}
			})
			if err != nil {
				t.Fatalf("merge: got error %v, want nil", err)
			}
		}
		if got := to.Stats(); got.Live != n || got.RemoteAccepted != uint64((gen+1)*n) {
			t.Fatalf("got %d entries, %d deltas after generation %d, want %d and %d", got.Live, got.RemoteAccepted, gen, n, uint64((gen+1)*n))
		}
	}
	if err := d.Merge([]byte{0xff}); err == nil {
		t.Fatal("merge an invalid message: got no error, want one")
	}
}
