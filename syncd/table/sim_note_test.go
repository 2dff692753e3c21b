package table_test

import (
	"testing"
	"time"

	"mapsync/syncd/table"
	"mapsync/syncd/table/tabletest"
)

// TestMapIsSavedOnceAllPeersHaveSent: c has not adopted the entries of its map yet. It therefore sends no
// records, and reports an empty full sync as complete. b has a new map, and receives nothing else. b
// must not treat the map as refilled. Otherwise it would delete, after a restart, everything that it
// wrote into the previous map, on all nodes.
func TestMapIsSavedOnceAllPeersHaveSent(t *testing.T) {
	for name, sends := range map[string]bool{"before c sends": false, "after c has sent": true} {
		t.Run(name, func(t *testing.T) {
			w := tabletest.NewWorld(t, tabletest.NewTables(table.Internals{}), "b", "c")
			b, c := w.Nodes[0], w.Nodes[1]
			lost, own := w.Key([]byte{7: 1}), w.Key([]byte{7: 2})
			c.Put(own, tabletest.Value{1}, 0, table.ContextPacket, true, 0)
			for _, n := range w.Nodes {
				n.Start()
				n.Daemon.LoadAll()
			}
			w.UpdateViews()
			b.Daemon.Adopt()
			b.Put(lost, tabletest.Value{2}, 0, table.ContextPacket, true, 0)
			b.Daemon.Deliver(0)
			c.Daemon.Inbound[b.ID].Pump(16)
			if k := c.Daemon.Content(lost); !k.Live() {
				t.Fatal("c: got no record of the key, want a live one")
			}

			b.Stop()
			b.Map = w.NewMap()
			restart(w, b)
			b.Daemon.Inbound[c.ID].Pump(16)
			if !b.Daemon.Adopt() || b.Daemon.Content(lost).Known {
				t.Fatal("adoption of b: got the key or no adoption, want an adoption without the records of c")
			}
			b.Daemon.SaveMapID()
			if b.StateFileMap == b.Map.ID {
				t.Error("state file of b: got the new map before the first record of c, want another map")
			}
			if sends {
				c.Daemon.Inbound[b.ID].Pump(16)
				c.Daemon.Adopt()
				b.Daemon.Inbound[c.ID].Pump(16)
				if b.Daemon.SaveMapID(); b.StateFileMap == b.Map.ID {
					t.Error("state file of b: got the new map before b wrote the records of c, want another map")
				}
				b.Daemon.Drain()
				if b.Daemon.SaveMapID(); b.StateFileMap != b.Map.ID {
					t.Error("state file of b: got no map, want the new map")
				}
			}
			b.Stop()
			if sends {
				b.Remove(lost, 0, table.ContextPacket, true, 0)
			}
			restart(w, b)
			mustConverge(t, w)
			for _, n := range w.Nodes {
				if k := n.Daemon.Content(lost); k.Live() == sends {
					t.Errorf("%s: key: got %v, want it live: %t", n.Name, &k, !sends)
				}
			}
		})
	}
}

func restart(w *tabletest.World, n *tabletest.Node) {
	w.Now += int64(time.Second)
	n.Start()
	n.Daemon.LoadAll()
	w.UpdateViews()
}
