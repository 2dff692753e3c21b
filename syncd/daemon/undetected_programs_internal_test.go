package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"mapsync/syncd/capture"
	"mapsync/syncd/kmap"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
)

// undetectedSamples returns the number of samples of mapsync_map_undetected_programs for a map.
func undetectedSamples(m *replica) (n int) {
	ch := make(chan prometheus.Metric, 100)
	sink(ch).replica(m)
	close(ch)
	for s := range ch {
		if s.Desc() == mapUndetected {
			n++
		}
	}
	return n
}

// TestUnlistedProgramsAreUnknown: if syncd cannot list programs, the status has the reason, the metric has no sample, and
// the log has one warning with a remedy. All end when syncd can list them again.
func TestUnlistedProgramsAreUnknown(t *testing.T) {
	for _, test := range []struct {
		err  error
		hint string
	}{
		{fmt.Errorf("list programs: %w", unix.EPERM), "grant CAP_SYS_ADMIN"},
		{errors.New("describe program 7: too many open files"), "raise LimitNOFILE"},
	} {
		var out strings.Builder
		d := &Daemon{log: slog.New(slog.NewTextHandler(&out, nil)), capture: &capture.Capture{}, entryMetrics: &entryMetrics{}}
		m := &replica{daemon: d, name: "ct", log: d.log}
		d.maps.Store(&[]*replica{m})
		check := func(err error) {
			d.checkPrograms(t.Context(), func(context.Context, []uint32) (map[uint32][]kmap.Program, error) { return nil, err })
		}
		if n := undetectedSamples(m); n != 0 { // without hooks on map functions, no check follows
			t.Errorf("before the programs are listed: got %d samples, want 0", n)
		}
		check(nil)
		if got, n := m.status().UndetectedProblem, undetectedSamples(m); got != "" || n != 1 {
			t.Errorf("listed programs: got problem %q and %d samples, want no problem and 1 sample", got, n)
		}
		for range 3 {
			check(test.err)
		}
		if got, n := m.status().UndetectedProblem, undetectedSamples(m); !strings.Contains(got, test.err.Error()) || !strings.Contains(got, test.hint) || n != 0 {
			t.Errorf("programs that cannot be listed: got problem %q and %d samples, want %v, %q and 0 samples", got, n, test.err, test.hint)
		}
		if log := out.String(); strings.Count(log, "level=WARN") != 1 || !strings.Contains(log, test.hint) {
			t.Errorf("log: got %q, want one warning with the hint %q", log, test.hint)
		}
		check(nil)
		if got, n := m.status().UndetectedProblem, undetectedSamples(m); got != "" || n != 1 || !strings.Contains(out.String(), "listed again") {
			t.Errorf("programs listed again: got problem %q, %d samples, log %q, want no problem, 1 sample and a line", got, n, out.String())
		}
	}
}
