package table

import (
	"testing"
	"time"
)

// TestRefusedDeleteIsKnownOnceTheKeyIsDeleted: f alone has met g, whose clock is ahead, and which has
// deleted the key and left. b, the fallback sender, refuses that delete, as e's record is live there, and
// then hears that e has deleted the key, too. All nodes must know g's delete from then on: a later write
// of e's would lose against it otherwise.
func TestRefusedDeleteIsKnownOnceTheKeyIsDeleted(t *testing.T) {
	for name, how := range map[string]struct{ local bool }{
		"deleted by its owner":         {},
		"deleted by the refusing node": {local: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSim(t, newTables(Internals{}), "b", "e", "f", "g")
			b, e, f, g := s.nodes[0], s.nodes[1], s.nodes[2], s.nodes[3]
			key := s.key([]byte{7: 1})
			g.offset = int64(time.Hour)
			part := func(apart bool) {
				for _, x := range []*simNode{b, e} {
					for _, y := range []*simNode{f, g} {
						s.cuts[x.id][y.id], s.cuts[y.id][x.id] = apart, apart
					}
				}
				s.updateViews()
			}
			part(true)
			for _, n := range s.nodes {
				s.now += int64(time.Second)
				n.start()
			}
			settleParted(s)
			e.put(key, entryValue{1}, 0, ContextPacket, true, 0)
			g.put(key, entryValue{2}, 0, ContextPacket, true, 0)
			settleParted(s)
			g.remove(key, 0, ContextPacket, true, 0)
			settleParted(s)
			g.stop()
			if how.local {
				s.now += int64(time.Millisecond)
				b.remove(key, 0, ContextPacket, true, 0)
			}
			part(false)
			b.d.inbound[f.id].pump(16)
			b.d.inbound[f.id].pump(16)
			if !s.defended {
				t.Fatal("b has not refused g's delete")
			}
			if !how.local {
				e.remove(key, 0, ContextPacket, true, 0)
			}
			mustConverge(t, s)
			if c := f.d.content(key); !c.dead || c.owner.Node != "g" {
				t.Errorf("f holds %v", &c)
			}
			s.now += int64(time.Second)
			e.put(key, entryValue{3}, 0, ContextPacket, true, 0)
			r := &simRun{sim: s}
			for range 4 {
				_ = s.converge()
				r.compare()
				s.pumpAll()
			}
			mustConverge(t, s)
			for _, n := range s.up() {
				if c := n.d.content(key); !c.live() || c.value != (entryValue{3}) {
					t.Errorf("%s holds %v, not e's last write", n.name, &c)
				}
			}
		})
	}
}

// settleParted settles nodes that are cut off from others, which are not equal then.
func settleParted(s *sim) {
	_ = s.converge()
}
