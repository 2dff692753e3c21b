package table_test

import (
	"flag"
	"testing"

	"mapsync/internal/race"
	"mapsync/syncd/table"
	"mapsync/syncd/table/tabletest"
)

var (
	exploreSteps = flag.Int("explore.steps", 0, "length of the action sequences of TestExplore with 2 nodes (2 less with 3 nodes); 0: short")
	exploreOnly  = flag.String("explore.only", "", "name of the only cluster that TestExplore explores; empty: all")
)

const (
	exploreStepsByDefault = 5
	exploreStepsIfShort   = 4
)

// TestExplore drives the tables of a few nodes and one key through every action sequence of a given
// length. It lets each state that it reaches come to rest and then checks it. The tables must be
// equal, and the maps must match the tables. No deleted key may return, and syncd may not overwrite
// the last write of its own load balancer. TestExplore visits each state once. To explore more steps:
//
//	go test ./syncd/table -run TestExplore -explore.steps 10 -timeout 0 -v
func TestExplore(t *testing.T) {
	race.SkipSequential(t)
	steps := exploreStepsByDefault
	switch {
	case *exploreSteps > 0:
		steps = *exploreSteps
	case testing.Short():
		steps = exploreStepsIfShort
	}
	tabletest.Explore(t, table.Internals{}, steps, *exploreOnly)
}
