package table_test

import (
	"testing"
	"time"

	"mapsync/syncd/table"
	"mapsync/syncd/table/tabletest"
)

// TestRefusedDeleteIsSentOnceTheKeyIsDeleted: only f has received the records of g. The clock of g is
// ahead, and g has deleted the key and left. b, the fallback sender, refuses that delete, because the record
// of e is live there. Then b receives the delete of the key by e. From then on all nodes must have the delete
// by g. Otherwise a later write of e would lose against it.
func TestRefusedDeleteIsSentOnceTheKeyIsDeleted(t *testing.T) {
	for name, how := range map[string]struct{ local bool }{
		"deleted by its owner":         {},
		"deleted by the refusing node": {local: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := tabletest.NewWorld(t, tabletest.NewTables(table.Internals{}), "b", "e", "f", "g")
			b, e, f, g := w.Nodes[0], w.Nodes[1], w.Nodes[2], w.Nodes[3]
			key := w.Key([]byte{7: 1})
			g.Offset = int64(time.Hour)
			part := func(apart bool) {
				for _, x := range []*tabletest.Node{b, e} {
					for _, y := range []*tabletest.Node{f, g} {
						w.Cuts[x.ID][y.ID], w.Cuts[y.ID][x.ID] = apart, apart
					}
				}
				w.UpdateViews()
			}
			part(true)
			for _, n := range w.Nodes {
				w.Now += int64(time.Second)
				n.Start()
			}
			convergeApart(w)
			e.Put(key, tabletest.Value{1}, 0, table.ContextPacket, true, 0)
			g.Put(key, tabletest.Value{2}, 0, table.ContextPacket, true, 0)
			convergeApart(w)
			g.Remove(key, 0, table.ContextPacket, true, 0)
			convergeApart(w)
			g.Stop()
			if how.local {
				w.Now += int64(time.Millisecond)
				b.Remove(key, 0, table.ContextPacket, true, 0)
			}
			part(false)
			b.Daemon.Inbound[f.ID].Pump(16)
			b.Daemon.Inbound[f.ID].Pump(16)
			if !w.Defended {
				t.Fatal("b has not refused g's delete")
			}
			if !how.local {
				e.Remove(key, 0, table.ContextPacket, true, 0)
			}
			mustConverge(t, w)
			if c := f.Daemon.Content(key); !c.Dead || c.Owner.Node != "g" {
				t.Errorf("f holds %v", &c)
			}
			w.Now += int64(time.Second)
			e.Put(key, tabletest.Value{3}, 0, table.ContextPacket, true, 0)
			for range 4 {
				_ = w.Converge()
				w.Compare()
				w.PumpAll()
			}
			mustConverge(t, w)
			for _, n := range w.Up() {
				if c := n.Daemon.Content(key); !c.Live() || c.Value != (tabletest.Value{3}) {
					t.Errorf("%s holds %v, not e's last write", n.Name, &c)
				}
			}
		})
	}
}

// convergeApart waits for nodes that are cut off from others, which are not equal then.
func convergeApart(w *tabletest.World) {
	_ = w.Converge()
}
