package drill

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"mapsync/syncd/capture"
)

// TestRatesAreThoseOfConnections checks that the load balancer carries netperf's connections in each way that the kernel
// has, and that syncd gets the events of all of them: two new entries and two deletes for each connection.
func TestRatesAreThoseOfConnections(t *testing.T) {
	needPrograms(t, "netperf", "netserver")
	ways, err := usableWays(capture.Probe(capture.AttachKprobe, capture.AttachFexit), os.Getenv("MAPSYNC_KERNEL"))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("ways: %s", ways)
	rates, err := MeasureRates(t.Context(), RateOptions{
		Ways: ways, Threads: []int{1, 4}, Rounds: 1, Window: time.Second, Syncd: thisSyncd(t),
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	if want := 2 * (1 + len(ways)); len(rates) != want {
		t.Fatalf("rates: got %d, want %d: one for each way and number of threads", len(rates), want)
	}
	for _, r := range rates {
		if r.Rate <= 0 || r.Ratio <= 0 || r.Lowest > r.Ratio || r.Ratio > r.Highest {
			t.Errorf("rate: got %+v, want rates and ordered ratios", r)
		}
		if f := r.Profile; r.Threads == 4 {
			checkProfile(t, r.Way, f)
		} else if f != nil {
			t.Errorf("rate with %d clients: got profile %+v, want one for the largest number only", r.Threads, f)
		}
		if r.Way == WayOff && (r.Ratio != 1 || r.Events > 0 || r.CPU > 0) {
			t.Errorf("rate without syncd: got %+v, want ratio 1 and no events", r)
		}
		if r.Way != WayOff && r.Events < uint64(2*r.Rate) {
			t.Errorf("rate with syncd: got %+v, want at least two events for each connection", r)
		}
		if r.Lost > 0 && !skipsRuns(r.Way, os.Getenv("MAPSYNC_KERNEL")) {
			t.Errorf("rate with syncd: got %+v, want no lost events", r)
		}
	}
}

// checkProfile: each part of the processor time of a connection that the way has was measured, and is less than the total.
func checkProfile(t *testing.T, way string, f *Profile) {
	t.Helper()
	syncd, hooks := way != WayOff, way == WayKprobe || way == WayFexit
	if f == nil || f.XDP <= 0 || f.Syncd+f.Peer+f.XDP+f.Hooks >= f.Total || (f.Syncd > 0) != syncd || (f.Peer > 0) != syncd || hooks && f.Hooks <= 0 {
		t.Errorf("profile with %s: got %+v, want syncd and its peer: %t, programs of hooks: %t, those of the load balancer, and more in total", way, f, syncd, hooks)
	}
}

// usableWays returns reports and the hooks that the kernel offers. It returns an error if a kernel of the matrix lacks one.
func usableWays(offers []capture.ProbeResult, kernel string) (ways []string, err error) {
	ways = []string{WayReports}
	for _, offer := range offers {
		switch {
		case offer.Err == nil:
			ways = append(ways, string(offer.Attach))
		case kernel != "" && kernel != "native":
			err = errors.Join(err, fmt.Errorf("attach by %s on kernel %s of the matrix: %w", offer.Attach, kernel, offer.Err))
		}
	}
	return ways, err
}

// skipsRuns reports whether the kernel may skip runs of a way's hooks, which syncd counts as lost: those of kprobes, and all
// of them if it preempts tasks inside a hook.
func skipsRuns(way, kernel string) bool {
	return way == WayKprobe || way == WayFexit && (kernel == "testing" || strings.Contains(kernel, "preempt"))
}

// TestWaysAreThoseOfTheKernel: each hook that works is measured, and a kernel of the matrix must have both.
func TestWaysAreThoseOfTheKernel(t *testing.T) {
	works := capture.ProbeResult{Attach: capture.AttachKprobe}
	fails := capture.ProbeResult{Attach: capture.AttachFexit, Err: errors.New("no BTF")}
	for _, tt := range []struct {
		kernel string
		offers []capture.ProbeResult
		want   []string
		fails  bool
	}{
		{"", []capture.ProbeResult{works, fails}, []string{WayReports, WayKprobe}, false},
		{"native", []capture.ProbeResult{fails}, []string{WayReports}, false},
		{"6.1", []capture.ProbeResult{works, {Attach: capture.AttachFexit}}, []string{WayReports, WayKprobe, WayFexit}, false},
		{"6.1", []capture.ProbeResult{works, fails}, []string{WayReports, WayKprobe}, true},
	} {
		got, err := usableWays(tt.offers, tt.kernel)
		if !slices.Equal(got, tt.want) || (err != nil) != tt.fails {
			t.Errorf("ways of kernel %q: got %s, error %v, want %s, an error: %v", tt.kernel, got, err, tt.want, tt.fails)
		}
	}
}
