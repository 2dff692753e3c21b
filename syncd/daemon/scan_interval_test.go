package daemon_test

import (
	"path/filepath"
	"testing"
	"time"

	"mapsync/internal/poll"
	"mapsync/syncd/capture"

	"github.com/cilium/ebpf"
)

// TestScanIntervalOfUnchangedMap has scans of a map at rest become rare. They are frequent again once
// a peer is lost, and once a program uses the map whose writes no hook detects.
func TestScanIntervalOfUnchangedMap(t *testing.T) {
	const base, limit = 100 * time.Millisecond, 30 * time.Second
	needAttach(t, capture.AttachKprobe)
	dir := pinDir(t)
	one, two := filepath.Join(dir, "one"), filepath.Join(dir, "two")
	m1 := pinned(t, one, 8, 16, 100)
	pinned(t, two, 8, 16, 100)
	n1, n2 := newNode(t, 1, "ct="+one), newNode(t, 2, "ct="+two)
	n1.attach = capture.AttachKprobe
	n1.config.ScanInterval, n1.config.MaxScanInterval = base, limit
	startPair(t, n1, n2)
	interval := func() float64 { return n1.status().Maps[0].Scan.Interval }
	extended := func() bool { return interval() >= 10*base.Seconds() }
	poll.Within(t, 2*limit, "scans of the map at rest are rare", extended)
	n2.stop()
	poll.Eventually(t, "scans are frequent after the loss of the peer", func() bool { return interval() < 2*base.Seconds() })
	n2.start()
	poll.Within(t, 3*limit, "scans are rare again", extended)
	loadUser(t, m1, "tracer", ebpf.Kprobe)
	poll.Eventually(t, "scans are frequent because of the program", func() bool { return interval() < 2*base.Seconds() })
	if n := len(n1.status().Maps[0].UndetectedPrograms); n != 1 {
		t.Errorf("programs whose writes are not detected: got %d, want 1", n)
	}
}
