package table_test

import (
	"flag"
	"math/rand/v2"
	"testing"

	"mapsync/internal/race"
	"mapsync/syncd/table"
	"mapsync/syncd/table/tabletest"
)

var (
	simSeeds = flag.Int("sim.seeds", 0, "number of seeds that TestSimulation runs; 0: default")
	simFirst = flag.Uint64("sim.first", 0, "first seed of TestSimulation; 0: random")
	simFails = flag.Int("sim.failures", 0, "number of failing seeds after which TestSimulation stops; 0: default")
	simSums  = flag.Bool("sim.sums", false, "print a checksum of the steps of each seed of TestSimulation")
)

const (
	simSeedsByDefault = 1000
	simSeedsIfShort   = 150
)

// TestSimulation runs clusters of 2 to 16 nodes through random work and faults, and then checks the
// final state. The tables must be equal, the maps must match the tables, and the digests must be
// equal. The keys of a single load balancer must have the values that it wrote last. The course of a
// run depends only on its seed:
//
//	go test ./syncd/table -run TestSimulation -sim.seeds 100000
//	go test ./syncd/table -run TestSimulation -sim.first 4711 -sim.seeds 1 -v
//	go test ./syncd/table -run TestSimulation -sim.first 4711 -sim.seeds 200 -sim.sums
//
// The second command prints the steps of one run, the third a checksum of the steps of each run. Without
// -sim.first each run begins with another seed, which it prints.
func TestSimulation(t *testing.T) {
	race.SkipSequential(t)
	simulate(t, tabletest.SimulationOptions{Seeds: simSeedsByDefault})
}

// TestSimulationDeletesAny is TestSimulation with Options.DeletesAny: deletes by the collector of any node
// replicate.
func TestSimulationDeletesAny(t *testing.T) {
	race.SkipSequential(t)
	simulate(t, tabletest.SimulationOptions{Seeds: simSeedsByDefault / 2, DeletesAny: true})
}

// TestSimulationStops is TestSimulation with clean stops.
func TestSimulationStops(t *testing.T) {
	race.SkipSequential(t)
	simulate(t, tabletest.SimulationOptions{Seeds: simSeedsByDefault / 2, Stops: true})
}

// The following are TestSimulation with few kinds of faults, which meet more often then.

func TestSimulationFilters(t *testing.T) { simulateFocus(t, tabletest.FocusFilters) }
func TestSimulationDrains(t *testing.T)  { simulateFocus(t, tabletest.FocusDrains) }
func TestSimulationRekeys(t *testing.T)  { simulateFocus(t, tabletest.FocusRekeys) }
func TestSimulationLayouts(t *testing.T) { simulateFocus(t, tabletest.FocusLayouts) }
func TestSimulationCopies(t *testing.T)  { simulateFocus(t, tabletest.FocusCopies) }

func simulateFocus(t *testing.T, on tabletest.Focus) {
	race.SkipSequential(t)
	simulate(t, tabletest.SimulationOptions{Seeds: simSeedsByDefault / 10, Focus: on})
}

// TestSimulationFewStops is TestSimulationStops with few other kinds of faults.
func TestSimulationFewStops(t *testing.T) {
	race.SkipSequential(t)
	simulate(t, tabletest.SimulationOptions{Seeds: simSeedsByDefault / 10, Stops: true, Focus: tabletest.FocusStops})
}

// simulate runs clusters with the seeds that the flags select. o.Seeds is the default of their number.
func simulate(t *testing.T, o tabletest.SimulationOptions) {
	switch {
	case *simSeeds > 0:
		o.Seeds = *simSeeds
	case testing.Short():
		o.Seeds = min(o.Seeds, simSeedsIfShort)
	}
	if o.First = *simFirst; o.First == 0 {
		o.First = 1 + rand.Uint64N(1<<40)
	}
	o.Sums, o.Failures = *simSums, *simFails
	tabletest.Simulate(t, table.Internals{}, o)
}

func TestSimulatorHasTheMarginOfTables(t *testing.T) {
	if tabletest.TimestampMargin != table.TimestampMargin {
		t.Errorf("margin: got %d ns, want %d ns", tabletest.TimestampMargin, table.TimestampMargin)
	}
}
