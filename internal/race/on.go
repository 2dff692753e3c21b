//go:build race

package race

// Enabled is true in a test with -race.
const Enabled = true
