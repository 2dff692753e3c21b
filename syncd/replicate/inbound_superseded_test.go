package replicate

import (
	"testing"
	"time"

	"mapsync/internal/poll"
	"mapsync/syncd/table"
)

// deleteByCollector deletes an entry by bpf(2), and returns the outcome.
func deleteByCollector(n *node, key []byte) (o table.Outcome) {
	n.tb.Update(func(tx *table.Tx) {
		o = tx.Local(&table.Change{Key: key, Op: table.OpDelete, Context: table.ContextSyscall, Time: time.Now().UnixNano()})
	})
	return o
}

// TestFilteredTakeover: a live peer takes over the entries of a node that has left, or those of this node, which filters the
// records of the peer. A collector of this node ends none of them, on any node. Once the cause has ended, it has the records.
func TestFilteredTakeover(t *testing.T) {
	for name, start := range filterings {
		t.Run(name, func(t *testing.T) {
			f := start(t)
			owner := func(i int) *node {
				if i%2 == 0 && name != "number out of range" { // b has another layout
					return f.b
				}
				return f.c
			}
			for i := range 10 {
				putValue(t, owner(i), f.key(i), f.value(i, 1))
			}
			connectNodes(f.a, f.b, f.c)
			poll.Within(t, deadline, "a and b hold the records", func() bool { return f.held(f.a) == 10 && f.held(f.b) == 10 })
			f.c.stop()
			connectNodes(f.a, f.b)
			f.begin()
			for i := range 10 {
				putValue(t, f.a, f.key(i), f.value(i, 2))
			}
			compared := f.b.r.Stats().Digests
			poll.Within(t, deadline, "b has filtered the records", func() bool { return f.b.r.Stats().Digests > compared+10 })
			for i := 5; i < 10; i++ {
				if o := deleteByCollector(f.b, f.key(i)); o != table.Restored {
					t.Errorf("delete of key %d by a collector: got %s, want %s", i, o, table.Restored)
				}
			}
			compared = f.a.r.Stats().Digests
			poll.Within(t, deadline, "a compares", func() bool { return f.a.r.Stats().Digests > compared+10 })
			if n, m := f.held(f.a), f.held(f.b); n != 10 || m != 10 {
				t.Errorf("records: got %d on a, %d on b, want 10", n, m)
			}
			f.end()
			poll.Within(t, deadline, "b has the last values", func() bool {
				for i := 5; i < 10; i++ {
					if name != "number out of range" && string(valueOf(f.b.tb, f.key(i))) != string(f.value(i, 2)) {
						return false
					}
				}
				return f.held(f.a) == 10
			})
		})
	}
}
