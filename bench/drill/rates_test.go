package drill

import (
	"log/slog"
	"testing"
	"time"
)

// TestRatesAreThoseOfConnections checks that the load balancer carries netperf's connections in each way, and that syncd
// gets the events of all of them: two new entries and two deletes for each connection.
func TestRatesAreThoseOfConnections(t *testing.T) {
	needPrograms(t, "netperf", "netserver")
	rates, err := MeasureRates(t.Context(), RateOptions{
		Ways: []string{WayReports}, Threads: []int{1, 4}, Rounds: 1, Window: time.Second,
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(rates) != 4 {
		t.Fatalf("rates: got %d, want one for each way and number of threads", len(rates))
	}
	for _, r := range rates {
		if r.Rate <= 0 || r.Ratio <= 0 || r.Lowest > r.Ratio || r.Ratio > r.Highest {
			t.Errorf("rate: got %+v, want rates and ordered ratios", r)
		}
		if r.Way == WayOff && (r.Ratio != 1 || r.Events > 0 || r.CPU > 0) {
			t.Errorf("rate without syncd: got %+v, want ratio 1 and no events", r)
		}
		if r.Way != WayOff && (r.Lost > 0 || r.Events < uint64(2*r.Rate)) {
			t.Errorf("rate with syncd: got %+v, want at least two events for each connection, none lost", r)
		}
	}
}
