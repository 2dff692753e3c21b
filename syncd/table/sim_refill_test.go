package table_test

import (
	"testing"

	"mapsync/syncd/table"
	"mapsync/syncd/table/tabletest"
)

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
			w := tabletest.NewWorld(t, tabletest.NewTables(table.Internals{}), "a", "b", "c")
			w.Model = tabletest.NewModel(w, 0)
			k, a := w.Key([]byte{'k', 7: 0}), w.Nodes[0]
			for _, n := range w.Nodes {
				n.Start()
			}
			for _, cut := range [][2]int{{}, {0, 2}} { // the second write reaches only one peer
				parts(w, cut, [2]int{1, 2})
				a.Put(k, w.Model.NextValue(k), 0, table.ContextPacket, true, 0)
				goOn(w)
			}
			a.Stop()
			w.Model.Stopped(a)
			a.Map = w.NewMap()
			w.Model.LostMap(a)
			parts(w, [2]int{0, 1}, [2]int{1, 2})
			a.Start()
			goOn(w)
			if test.restart {
				a.Stop()
				w.Model.Stopped(a)
				if a.StateFileMap = 0; test.noted {
					a.StateFileMap = a.Map.ID
				}
				a.Start()
			}
			w.Heal()
			mustConverge(t, w)
			c := a.Daemon.Content(k)
			if got := c.Value.Number(); got != test.want {
				t.Errorf("key: got %v, want #%d", &c, test.want)
			}
			if err := w.Model.Check(k, &c); err != nil {
				t.Error(err)
			}
		})
	}
}

// parts cuts the given pairs of nodes from each other, and removes all other cuts.
func parts(w *tabletest.World, pairs ...[2]int) {
	for i := range w.Cuts {
		clear(w.Cuts[i])
	}
	for _, p := range pairs {
		if i, j := p[0], p[1]; i != j {
			w.Cuts[i][j], w.Cuts[j][i] = true, true
		}
	}
}

// goOn does all pending work, as far as nodes reach each other.
func goOn(w *tabletest.World) {
	for range 4 {
		w.Now += 2 * table.TimestampMargin
		for _, n := range w.Nodes {
			n.Daemon.RunUntilIdle()
		}
		w.PumpAll()
	}
}
