package main

import "testing"

// TestConnections counts connections at both ends, while they close as well, and neither listeners nor ended ones.
func TestConnections(t *testing.T) {
	const head = "  sl  local_address rem_address   st tx_queue rx_queue\n"
	for line, want := range map[string]int{
		"   0: 00000000:1F90 00000000:0000 0A 00000000:00000000\n": 0,
		"   1: 0100007F:1F90 0101007F:9C40 06 00000000:00000000\n": 0,
		"   2: 0100007F:1F90 0101007F:9C40 04 00000000:00000000\n": 1,
		"   3: 0101007F:9C40 0100007F:1F90 09 00000000:00000000\n": 1,
		"   4: 0101007F:9C40 0100007F:1F91 01 00000000:00000000\n": 0,
	} {
		if got := connections(head + line); got != want {
			t.Errorf("connections in %q: got %d, want %d", line, got, want)
		}
	}
}
