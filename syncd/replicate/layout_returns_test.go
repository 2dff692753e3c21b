package replicate

import (
	"testing"

	"mapsync/internal/poll"
	"mapsync/syncd/schema"
	"mapsync/syncd/schema/schematest"
	"mapsync/syncd/table"
)

// changeLayout converts the table of a node, as syncd does for a new kernel map.
func changeLayout(t *testing.T, n *node, from, to *schema.Schema) {
	t.Helper()
	encoder, err := schema.NewEncoder(from, nil)
	if err != nil {
		t.Fatal(err)
	}
	decoder, err := schema.NewDecoder(from, to, nil)
	if err != nil {
		t.Fatal(err)
	}
	times := n.r.opt.Times()
	tb, _, err := n.tb.Convert(table.Options{KeySize: to.Key.Size, ValueSize: to.Value.Size, ComparedKey: to.ComparedKey()}, table.Conversion{
		Key: func(dst, src []byte) error {
			key, err := encoder.AppendKey(nil, src)
			if err != nil {
				return err
			}
			return decoder.Key(dst, key)
		},
		Value: func(dst, src []byte) error {
			return decoder.Value(dst, nil, encoder.AppendValue(nil, nil, src, &times), &times)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	n.r.RemoveMap("typed")
	n.tb = tb
	n.addTyped("typed", to, nil, tb)
}

// TestDroppedRecordsReturn: a load balancer changes the layout of its map to one that some entries do not fit, and later back. The
// other node keeps the entries at each moment, and the node receives them again.
func TestDroppedRecordsReturn(t *testing.T) {
	a := typedNode(t, "a", schematest.NewVersion(), nil, shortCompare)
	b := typedNode(t, "b", schematest.NewVersion(), nil, shortCompare)
	connectNodes(a, b)
	packets := func(i int) uint64 { return 7 + uint64(i%2)<<40 } // the old version holds the entries with even numbers
	count := func(tb *table.Table) (n int) {
		for i := range 10 {
			if valueOf(tb, flow(byte(i))) != nil {
				n++
			}
		}
		return n
	}
	for i := range 10 {
		putValue(t, a, flow(byte(i)), ct{Packets: packets(i)}.new())
	}
	poll.Within(t, deadline, "the peer has the records", func() bool { return count(b.tb) == 10 })
	kept := func() {
		t.Helper()
		if n := count(b.tb); n != 10 {
			t.Fatalf("records of the peer: got %d, want 10", n)
		}
	}
	changeLayout(t, a, schematest.NewVersion(), schematest.OldVersion())
	if n := count(a.tb); n != 5 {
		t.Fatalf("converted records: got %d, want 5", n)
	}
	before := a.r.Stats().FullSyncs
	// The first does not sweep, because it is of another map.
	poll.Within(t, deadline, "full syncs sweep the records of the peer", func() bool { kept(); return a.r.Stats().FullSyncs >= before+3 })
	changeLayout(t, a, schematest.OldVersion(), schematest.NewVersion())
	poll.Within(t, deadline, "the node has all records again", func() bool { kept(); return count(a.tb) == 10 })
}
