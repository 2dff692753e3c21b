package daemon_test

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mapsync/internal/poll"
	"mapsync/syncd/daemon"
)

// TestScansArePausedByCommand: a pause stops the scans of a daemon, and status and the log show it until it is
// resumed.
func TestScansArePausedByCommand(t *testing.T) {
	pin := filepath.Join(pinDir(t), "ct")
	pinned(t, pin, 8, 16, 100)
	n := newNode(t, 1, "ct="+pin)
	n.config.Join, n.config.ScanInterval = nil, 50*time.Millisecond
	n.start()
	scans := func() uint64 {
		if s := n.status().Maps[0].Scan; s != nil { // nil until the map is attached
			return s.Scans
		}
		return 0
	}
	poll.Eventually(t, "syncd scans", func() bool { return scans() > 1 })
	for _, length := range []time.Duration{0, -time.Second, daemon.MaxScanPause + 1} {
		if _, err := n.client.PauseScans(t.Context(), length); !errors.Is(err, daemon.ErrUse) {
			t.Errorf("pause of %s: got error %v, want one about wrong use", length, err)
		}
	}
	before := time.Now()
	pause, err := n.client.PauseScans(t.Context(), time.Hour)
	if err != nil || pause.Until.Before(before.Add(time.Hour)) {
		t.Fatalf("pause of an hour: got an end at %s, error %v, want one in an hour", pause.Until, err)
	}
	if until := n.status().ScansPausedUntil; !until.Equal(pause.Until) {
		t.Errorf("status in a pause: got an end at %s, want %s", until, pause.Until)
	}
	last, since := scans(), time.Now()
	poll.Eventually(t, "no scan ends for 1 s", func() bool {
		if now := scans(); now != last {
			last, since = now, time.Now()
		}
		return time.Since(since) >= time.Second
	})
	poll.Stays(t, time.Second, "no scan in a pause", func() bool { return scans() == last })
	if _, err := n.client.Drain(t.Context(), true); err != nil {
		t.Fatalf("drain in a pause: %v", err)
	}
	poll.Eventually(t, "the drain waits for the end of the pause", func() bool {
		h, err := n.client.Handover(t.Context())
		return err == nil && !h.Done && strings.Contains(strings.Join(h.Waiting, " "), "syncd scans resume")
	})
	if _, err := n.client.ResumeScans(t.Context()); err != nil {
		t.Fatalf("resume scans: %v", err)
	}
	poll.Eventually(t, "syncd scans again", func() bool { return scans() > last })
	poll.Eventually(t, "the drain is done", func() bool { h, err := n.client.Handover(t.Context()); return err == nil && h.Done })
	if s := n.status(); !s.ScansPausedUntil.IsZero() {
		t.Errorf("status after resume: got a pause until %s, want none", s.ScansPausedUntil)
	}
	for _, line := range []string{"scans paused", "scans resumed"} {
		if !n.log.contains(line) {
			t.Errorf("log: got no line %q, want one", line)
		}
	}
}
