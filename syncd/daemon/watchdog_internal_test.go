package daemon

import (
	"log/slog"
	"math"
	"testing"
	"time"
)

// All values that systemd can set are supported. Invalid values disable the watchdog.
func TestWatchdogTimes(t *testing.T) {
	for usec, want := range map[string]time.Duration{
		"30000000": 30 * time.Second, "7200000000": 2 * time.Hour, "9223372036854775807": math.MaxInt64 / 1000 * 1000, "": 0, "-1": 0, "soon": 0,
	} {
		t.Setenv("WATCHDOG_USEC", usec)
		if n := newNotifier(slog.New(slog.DiscardHandler)); n.watchdog != want {
			t.Errorf("WATCHDOG_USEC %q: got %s, want %s", usec, n.watchdog, want)
		}
	}
}
