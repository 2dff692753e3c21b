package table

import "testing"

// TestRefilledFromAPeerThatHasLess: a host loses its map, and reaches only a peer that has an older
// record. Without a restart the newer record wins. After a restart the map decides, whether the state
// file names it or not. Its entries do not show whether the daemon or the load balancer wrote them.
func TestRefilledFromAPeerThatHasLess(t *testing.T) {
	for name, test := range map[string]struct {
		restart, noted bool
		want           int
	}{
		"no restart": {want: 2},
		"restart":    {restart: true, want: 1},
		"noted map":  {restart: true, noted: true, want: 1},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSim(t, newTables(Internals{}), "a", "b", "c")
			s.model = &simModel{sim: s, keys: []modelKey{{home: 0}}}
			k, a := s.key(pad("k", simKey)), s.nodes[0]
			for _, n := range s.nodes {
				n.start()
			}
			for _, cut := range [][2]int{{}, {0, 2}} { // the second write reaches only one peer
				s.parts(cut, [2]int{1, 2})
				a.put(k, s.model.value(k), 0, ContextPacket, true, 0)
				s.goOn()
			}
			a.stop()
			s.model.stopped(a)
			a.lb = s.newMap()
			s.model.lostMap(a)
			s.parts([2]int{0, 1}, [2]int{1, 2})
			a.start()
			s.goOn()
			if test.restart {
				a.stop()
				s.model.stopped(a)
				if a.stateFileMap = 0; test.noted {
					a.stateFileMap = a.lb.id
				}
				a.start()
			}
			s.heal()
			mustConverge(t, s)
			c := a.d.content(k)
			if got := c.value.number(); got != test.want {
				t.Errorf("key: got %v, want #%d", &c, test.want)
			}
			if err := s.model.check(k, &c); err != nil {
				t.Error(err)
			}
		})
	}
}

// parts cuts the given pairs of nodes from each other, and removes all other cuts.
func (s *sim) parts(pairs ...[2]int) {
	for i := range s.cuts {
		clear(s.cuts[i])
	}
	for _, p := range pairs {
		if i, j := p[0], p[1]; i != j {
			s.cuts[i][j], s.cuts[j][i] = true, true
		}
	}
}

// goOn does all pending work, as far as nodes reach each other.
func (s *sim) goOn() {
	for range 4 {
		s.now += 2 * timestampMargin
		for _, n := range s.nodes {
			n.d.runUntilIdle()
		}
		s.pumpAll()
	}
}
