package replicate

import (
	"encoding/binary"
	"strings"
	"testing"
	"time"

	"mapsync/internal/poll"
	"mapsync/syncd/table"
)

// TestZeroValueInArray: a peer whose map is not an array sends a value of zeros, and an index that the array lacks.
// The node with the array sets these records aside, lists them, and receives the others.
func TestZeroValueInArray(t *testing.T) {
	a, b := startNode(t, "a", 1, nil), startNode(t, "b", 2, nil)
	tables := map[*node]*table.Table{}
	for _, n := range []*node{a, b} {
		tables[n] = newSizedTable(t, n.self, 4, testValueSize, false)
		l := Layout{KeySize: 4, ValueSize: testValueSize}
		if n == b {
			l.Elements = 3
		}
		if err := n.r.AddMap("array", l, tables[n]); err != nil {
			t.Fatalf("add map: got error %v, want nil", err)
		}
		n.stops = append(n.stops, startWriter(tables[n]))
	}
	connectNodes(a, b)
	index := func(k int) []byte { return binary.NativeEndian.AppendUint32(nil, uint32(k)) }
	put := func(k int, value []byte) {
		tables[a].Update(func(tx *table.Tx) {
			tx.AdvanceClock(time.Now().UnixNano())
			tx.Local(&table.Change{Key: index(k), Value: value, Op: table.OpUpdate, Time: time.Now().UnixNano()})
		})
	}
	filled := make([]byte, testValueSize)
	filled[testValueSize-1] = 1
	put(1, make([]byte, testValueSize))
	put(3, filled)
	put(2, filled)
	poll.Within(t, deadline, "the other record arrives", func() bool { return valueOf(tables[b], index(2)) != nil })
	poll.Within(t, deadline, "the record is listed", func() bool {
		m, _ := b.status("a", "array")
		return m.ExceptionCount == 2 && strings.Contains(m.Exceptions[0].Reason+m.Exceptions[1].Reason, "zeros")
	})
	if v := valueOf(tables[b], index(1)); v != nil {
		t.Errorf("record of zeros: got %x, want none", v)
	}
	put(1, filled)
	poll.Within(t, deadline, "the record fits", func() bool {
		m, _ := b.status("a", "array")
		return valueOf(tables[b], index(1)) != nil && m.ExceptionCount == 1 && strings.Contains(m.Exceptions[0].Reason, "no such index")
	})
	if s := b.r.Stats(); s.BadMessages != 0 || s.DeltasOutOfRange == 0 {
		t.Errorf("counters: got %d bad messages, %d deltas out of range, want none and some", s.BadMessages, s.DeltasOutOfRange)
	}
}
