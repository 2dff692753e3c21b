package replicate

import (
	"strings"
	"testing"
	"time"

	"mapsync/internal/poll"
	"mapsync/syncd/table"
)

// TestZeroValueInArray: a peer whose map is not an array sends a value of zeros. The node with an array sets the
// record aside, lists it, and receives the others.
func TestZeroValueInArray(t *testing.T) {
	a, b := startNode(t, "a", 1, nil), startNode(t, "b", 2, nil)
	tables := map[*node]*table.Table{}
	for _, n := range []*node{a, b} {
		tables[n] = newTable(t, n.self, false)
		l := Layout{KeySize: testKeySize, ValueSize: testValueSize, Array: n == b}
		if err := n.r.AddMap("array", l, tables[n]); err != nil {
			t.Fatalf("add map: got error %v, want nil", err)
		}
		n.stops = append(n.stops, startWriter(tables[n]))
	}
	connectNodes(a, b)
	put := func(k int, value []byte) {
		tables[a].Update(func(tx *table.Tx) {
			tx.AdvanceClock(time.Now().UnixNano())
			tx.Local(&table.Change{Key: key(k), Value: value, Op: table.OpUpdate, Time: time.Now().UnixNano()})
		})
	}
	filled := make([]byte, testValueSize)
	filled[testValueSize-1] = 1
	put(1, make([]byte, testValueSize))
	put(2, filled)
	poll.Within(t, deadline, "the other record arrives", func() bool { return valueOf(tables[b], key(2)) != nil })
	poll.Within(t, deadline, "the record is listed", func() bool {
		m, _ := b.status("a", "array")
		return m.ExceptionCount == 1 && strings.Contains(m.Exceptions[0].Reason, "zeros")
	})
	if v := valueOf(tables[b], key(1)); v != nil {
		t.Errorf("record of zeros: got %x, want none", v)
	}
	put(1, filled)
	poll.Within(t, deadline, "the record fits", func() bool {
		m, _ := b.status("a", "array")
		return valueOf(tables[b], key(1)) != nil && m.ExceptionCount == 0
	})
	if s := b.r.Stats(); s.BadMessages != 0 || s.DeltasOutOfRange == 0 {
		t.Errorf("counters: got %d bad messages, %d deltas out of range, want none and some", s.BadMessages, s.DeltasOutOfRange)
	}
}
