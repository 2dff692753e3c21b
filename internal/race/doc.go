// Package race reports whether a test runs with the race detector, with which it takes ten times as long.
package race
