package table

import (
	"testing"
	"time"
)

// TestMapIsSavedOnceAllPeersHaveSent: c has not adopted the entries of its map yet. It therefore sends no
// records, and reports an empty full sync as complete. b has a new map, and receives nothing else. b
// must not treat the map as refilled. Otherwise it would delete, after a restart, everything that it
// wrote into the previous map, on all nodes.
func TestMapIsSavedOnceAllPeersHaveSent(t *testing.T) {
	for name, tells := range map[string]bool{"before c sends": false, "after c has sent": true} {
		t.Run(name, func(t *testing.T) {
			s := newSim(t, newTables(Internals{}), "b", "c")
			b, c := s.nodes[0], s.nodes[1]
			lost, own := s.key([]byte{7: 1}), s.key([]byte{7: 2})
			c.put(own, entryValue{1}, 0, ContextPacket, true, 0)
			for _, n := range s.nodes {
				n.start()
				n.d.loadAll()
			}
			s.updateViews()
			b.d.adopt()
			b.put(lost, entryValue{2}, 0, ContextPacket, true, 0)
			b.d.deliver(0)
			c.d.inbound[b.id].pump(16)
			if k := c.d.content(lost); !k.live() {
				t.Fatal("c: got no record of the key, want a live one")
			}

			b.stop()
			b.lb = s.newMap()
			restart(s, b)
			b.d.inbound[c.id].pump(16)
			if !b.d.adopt() || b.d.content(lost).known {
				t.Fatal("adoption of b: got the key or no adoption, want an adoption without the records of c")
			}
			b.d.saveMapID()
			if b.stateFileMap == b.lb.id {
				t.Error("state file of b: got the new map before the first record of c")
			}
			if tells {
				c.d.inbound[b.id].pump(16)
				c.d.adopt()
				b.d.inbound[c.id].pump(16)
				if b.d.saveMapID(); b.stateFileMap == b.lb.id {
					t.Error("state file of b: got the new map before b wrote the records of c")
				}
				b.d.drain()
				if b.d.saveMapID(); b.stateFileMap != b.lb.id {
					t.Error("state file of b: got no map, want the new map")
				}
			}
			b.stop()
			if tells {
				b.remove(lost, 0, ContextPacket, true, 0)
			}
			restart(s, b)
			mustConverge(t, s)
			for _, n := range s.nodes {
				if k := n.d.content(lost); k.live() == tells {
					t.Errorf("%s: key: got %v", n.name, &k)
				}
			}
		})
	}
}

func restart(s *sim, n *simNode) {
	s.now += int64(time.Second)
	n.start()
	n.d.loadAll()
	s.updateViews()
}
