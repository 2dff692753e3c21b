package wire

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/schema"
	"mapsync/syncd/table"
)

const (
	testKeySize   = 8
	testValueSize = 16
	testMap       = "ct"
)

func newTable(t testing.TB, self table.Owner) *table.Table {
	t.Helper()
	tb, err := table.New(table.Options{
		Self: self, KeySize: testKeySize, ValueSize: testValueSize, TombstoneTTL: time.Hour,
	})
	if err != nil {
		t.Fatalf("new table: got error %v, want nil", err)
	}
	return tb
}

func key(i int) []byte {
	return binary.BigEndian.AppendUint64(nil, uint64(i))
}

func value(i int) []byte {
	b := make([]byte, testValueSize)
	binary.BigEndian.PutUint64(b, uint64(i))
	return b
}

// putTable makes local changes that set the keys from to to to the value v.
func putTable(t testing.TB, tb *table.Table, from, to, v int) {
	t.Helper()
	tb.Update(func(tx *table.Tx) {
		for i := from; i < to; i++ {
			o := tx.Local(&table.Change{Key: key(i), Value: value(v), Time: time.Now().UnixNano()})
			if o != table.Accepted {
				t.Errorf("put key %d: got %s, want %s", i, o, table.Accepted)
			}
		}
	})
}

// incarnation returns the wire format of an owner.
func incarnation(o table.Owner) *mapsyncv1.Incarnation {
	return &mapsyncv1.Incarnation{Node: o.Node, Number: o.Incarnation}
}

// codecOf returns the encoder for a table with opaque bytes.
func codecOf(t testing.TB, tb *table.Table) *schema.Encoder {
	t.Helper()
	e, err := schema.NewEncoder(schema.FromSizes(testMap, tb.KeySize(), tb.ValueSize()), nil)
	if err != nil {
		t.Fatalf("new encoder: got error %v, want nil", err)
	}
	return e
}

// wireBytes returns bytes in the wire format of an opaque map.
func wireBytes(b []byte) []byte {
	b = bytes.TrimRight(b, "\x00")
	if len(b) == 0 {
		return nil
	}
	return protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), b)
}

// frameBytes returns a copy of an encoded message.
func frameBytes(m *SentFrame) (b []byte) {
	for _, piece := range m.Buffers() {
		b = append(b, piece.ReadOnlyData()...)
	}
	return b
}
