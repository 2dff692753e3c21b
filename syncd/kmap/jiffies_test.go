package kmap

import (
	"testing"
	"time"
)

// What the kernel counts later must be where the measurement says, to a tick.
func TestMeasureJiffiesPredictsTheCounter(t *testing.T) {
	j, err := MeasureJiffies()
	if err != nil {
		t.Fatal(err)
	}
	r, err := newTickReader()
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	for range 20 {
		time.Sleep(7 * time.Millisecond)
		now, err := r.read()
		if err != nil {
			t.Fatal(err)
		}
		// The kernel may be late to count a tick, and the measurement to see one.
		want := int64(j.Count) + (now.At-j.At)/j.Tick
		if diff := want - int64(now.Count); diff < -1 || diff > 3 {
			t.Errorf("counter %d, predicted %d with a tick of %d ns", now.Count, want, j.Tick)
		}
	}
}

func TestNearestTick(t *testing.T) {
	for measured, want := range map[int64]int64{
		999_000: 1_000_000, 3_400_000: 3_333_333, 3_999_000: 4_000_000, 9_500_000: 10_000_000, 30_000_000: 10_000_000,
	} {
		if got := nearestTick(measured); got != want {
			t.Errorf("nearest to %d: %d, want %d", measured, got, want)
		}
	}
}
