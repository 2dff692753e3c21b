// Package race reports whether a test runs with the race detector, with which it takes ten times as long.
package race

import "testing"

// SkipSequential skips a test of one goroutine if it runs with the race detector, which finds nothing
// there.
func SkipSequential(t *testing.T) {
	t.Helper()
	if Enabled {
		t.Skip("the race detector finds nothing in one goroutine")
	}
}
