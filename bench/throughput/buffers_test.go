package main

import "testing"

// TestLeastEventsFillBuffer checks the number of events of a run: their bytes are a multiple of those of the buffer.
func TestLeastEventsFillBuffer(t *testing.T) {
	for _, c := range []struct {
		pages, fills int
		want         uint64
	}{
		{16, 4, 1024},
		{4096, 4, 262_144}, // 4 times 16 MiB, of 256 bytes each
		{32768, 4, 2_097_152},
		{4096, 0, 0},
	} {
		got := leastEvents(c.pages, c.fills)
		if got != c.want {
			t.Errorf("events of a run with %d pages, %d fills: got %d, want %d", c.pages, c.fills, got, c.want)
		}
		if bytes := got * eventBytes; bytes < uint64(c.fills*c.pages*4096) {
			t.Errorf("bytes of a run with %d pages: got %d, want %d times the buffer", c.pages, bytes, c.fills)
		}
	}
}
