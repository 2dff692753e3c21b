package busy

import (
	"testing"
	"time"
)

// TestFactor: the factor is within its bounds, and a virtual machine of the tests counts as busy.
func TestFactor(t *testing.T) {
	if got := Factor(); got < 1 || got > most {
		t.Errorf("factor of this machine: got %g, want one from 1 to %d", got, most)
	}
	t.Setenv("MAPSYNC_KERNEL", "6.1")
	if got := Lengthened(time.Second); got < 6*time.Second || got > most*time.Second {
		t.Errorf("limit of 1 s in a virtual machine: got %s, want 6 s to 10 s", got)
	}
}
