package kmap

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mapsync/syncd/table"
)

// TestScanFailures checks that the scan of an unreadable map is retried, and that failure and
// recovery are logged once each.
func TestScanFailures(t *testing.T) {
	var out strings.Builder
	m := openMap(t, newKernelMap(t, hashSpec(testKey, testValue, 10)), Options{})
	s, err := NewScanner(newTable(t, table.Options{}), m, ScannerOptions{Logger: slog.New(slog.NewTextHandler(&out, nil))})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.bucketReader.prog.Close(); err != nil {
		t.Fatal(err)
	}
	s.Request()
	for range 3 {
		err := s.scan(t.Context(), time.Now())
		if err == nil {
			t.Fatal("scan without its program: got no error, want an error")
		}
		s.recordFailure(err)
		if !s.requested() {
			t.Error("request of an urgent scan after a failure: got none, want one")
		}
	}
	s.recordFinished(true, time.Hour)
	st := s.Stats()
	if log := out.String(); st.Failures != 3 || st.Scans != 0 || strings.Count(log, "scan failed") != 1 || strings.Count(log, "scans recovered") != 1 {
		t.Errorf("stats and log: got %+v, want 3 failures and 0 scans; want one line each about failure and recovery, got\n%s", st, log)
	}
}

// TestHintsOfFailedScans: the log line about a failed scan has the remedy for its error.
func TestHintsOfFailedScans(t *testing.T) {
	for _, test := range []struct {
		err  error
		want string
	}{
		{fmt.Errorf("%w: bucket 7", errBucket), "more maximum entries"},
		{ErrAlwaysDrained, "let the collector pause"},
		{fmt.Errorf("attach iterator: %w", unix.EPERM), "grant the privilege"},
		{unix.EACCES, "grant the privilege"},
		{fmt.Errorf("open iterator: %w", unix.EMFILE), "raise LimitNOFILE"},
		{errors.New("no progress"), "restart syncd"},
	} {
		var out strings.Builder
		s := newScannerWithoutMap(t, ScannerOptions{Logger: slog.New(slog.NewTextHandler(&out, nil))})
		s.recordFailure(fmt.Errorf("read map %q: %w", "ct", test.err))
		_, hint, _ := strings.Cut(out.String(), "hint=")
		if !strings.Contains(hint, test.want) {
			t.Errorf("hint of %q: got %q, want %q", test.err, hint, test.want)
		}
	}
}
