package capture_test

import (
	"log/slog"
	"testing"

	"golang.org/x/sys/unix"

	"mapsync/syncd/capture"
	"mapsync/syncd/kmap"
)

// TestRingCreationIsMeasured: the creation of a ring is one measured call, with little else in it. A perf buffer has none.
func TestRingCreationIsMeasured(t *testing.T) {
	for buffer, want := range map[capture.Buffer]int{capture.BufferRing: 1, capture.BufferPerf: 0} {
		before := kmap.Calls()[kmap.CallCreateBuffer]
		measured := 0
		c, err := capture.Open(capture.Options{
			Attach: capture.AttachNone, Buffer: buffer, Logger: slog.New(slog.DiscardHandler),
			MeasureRing: func(create func()) {
				measured++
				kmap.CallCreateBuffer.Measure(func() {
					start := processorTime(t)
					create()
					for processorTime(t) == start { // the clock of an emulated machine is coarse
					}
				})
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		size := c.Maps()["ring"].MaxEntries()
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if measured != want || want > 0 && size != capture.DefaultRingBytes {
			t.Errorf("buffer %s: got %d measured calls and a ring of %d bytes, want %d calls and, if any, %d bytes",
				buffer, measured, size, want, capture.DefaultRingBytes)
		}
		after := kmap.Calls()[kmap.CallCreateBuffer]
		if got := int(after.Count - before.Count); got != want || want > 0 && after.Sum == before.Sum {
			t.Errorf("buffer %s: got %d counted calls of %s, want %d calls with a duration", buffer, got, after.Sum-before.Sum, want)
		}
	}
}

// processorTime returns the processor time of this thread in nanoseconds.
func processorTime(t *testing.T) int64 {
	t.Helper()
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		t.Fatal(err)
	}
	return ts.Nano()
}
