package capture

import (
	"testing"

	"mapsync/bpf"
)

// TestSlotsPerCPU: with too few slots, programs on the last CPUs would report nothing.
func TestSlotsPerCPU(t *testing.T) {
	spec, err := bpf.LoadCapture()
	if err != nil {
		t.Fatal(err)
	}
	if got := spec.Maps["slots"].MaxEntries; got != slotsPerCPU {
		t.Errorf("slots per CPU: got %d, want SLOTS of bpf/event.h, %d", slotsPerCPU, got)
	}
}
