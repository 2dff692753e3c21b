//go:build race

package table

// RaceDetector is true in a test with -race. The simulation and the explorer then take ten times as long. They
// have one goroutine, so they run as with -short.
const RaceDetector = true
