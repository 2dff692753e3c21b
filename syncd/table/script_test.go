package table_test

import (
	"testing"

	"github.com/cockroachdb/datadriven"

	"mapsync/syncd/table"
	"mapsync/syncd/table/tabletest"
)

// TestScenarios runs the scenarios in testdata/scenarios. A scenario is a sequence of events. Each event
// is one line with the node, the event and its arguments. The outcome follows:
//
//	a update k v1
//	----
//	a update k v1 by packet: accepted
//
//	sync a b
//	----
//	a > b: k v1 v1 a: accepted
//
// The events are the keys of scriptCommands in package tabletest. An event without an outcome prints "ok".
// The time passes by a millisecond with each event. Versions are printed as milliseconds since the start,
// followed by the remaining nanoseconds. To write the outcomes into the files:
//
//	go test ./syncd/table -run TestScenarios -rewrite
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata/scenarios", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, tabletest.NewScript(table.Internals{}).Run)
	})
}
