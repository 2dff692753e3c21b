package kmap

import (
	"testing"
	"time"
)

// TestMeasureJiffiesPredictsTheCounter checks that the counter is never ahead of the prediction and
// reaches it. A busy kernel may increment the counter late for a while.
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
	reached := 0
	for end := time.Now().Add(time.Minute); reached < 20; {
		time.Sleep(7 * time.Millisecond) // samples at different times within a tick
		now, err := r.read()
		if err != nil {
			t.Fatal(err)
		}
		want := int64(j.Count) + (now.At-j.At)/j.Tick
		late := want - int64(now.Count)
		if late < -1 {
			t.Fatalf("counter: got %d, want at most %d with a tick of %d ns", now.Count, want, j.Tick)
		}
		if late <= 1 {
			reached++
		} else if time.Now().After(end) {
			t.Fatalf("counter: got %d, want %d with a tick of %d ns", now.Count, want, j.Tick)
		}
	}
}

// TestEarliestEdge checks that edges that were detected late do not change the time of the measurement.
func TestEarliestEdge(t *testing.T) {
	for _, hz := range []int64{100, 250, 300, 1000} {
		tick := int64(time.Second) / hz
		edge := func(count, late int64) Jiffies {
			return Jiffies{Count: uint64(1000 + count), At: 7_000_000_000 + count*tick + late}
		}
		for name, edges := range map[string][]Jiffies{
			"none late":  {edge(0, 100), edge(1, 200), edge(2, 300), edge(15, 200), edge(16, 200), edge(17, 200)},
			"first late": {edge(0, 9_000_000), edge(3, 100), edge(4, 3_000_000), edge(15, 200), edge(16, 200), edge(17, 200)},
			"last late":  {edge(0, 200), edge(1, 100), edge(2, 200), edge(14, 300), edge(16, 200), edge(22, 6_000_000)},
			"most late":  {edge(0, 200), edge(1, 90_000), edge(2, 1_000_000), edge(14, 100), edge(16, 2_000_000), edge(22, 6_000_000)},
		} {
			got := earliestEdge(edges, tick)
			if got.Tick != tick || got.At-int64(got.Count-1000)*tick != 7_000_000_100 {
				t.Errorf("%d Hz, %s: got %+v, want the edge that is 100 ns late", hz, name, *got)
			}
		}
	}
}
