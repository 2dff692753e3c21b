package daemon_test

import (
	"path/filepath"
	"testing"
	"time"

	"mapsync/internal/poll"
	"mapsync/syncd/capture"
	"mapsync/syncd/problem"

	"github.com/cilium/ebpf"
)

// TestScanIntervalOfUnchangedMap has scans of an unchanged map become rare, and frequent again once a peer
// is lost. With a method that may miss writes they stay frequent.
func TestScanIntervalOfUnchangedMap(t *testing.T) {
	const base, limit = 100 * time.Millisecond, 20 * time.Second
	for _, attach := range []capture.Attach{capture.AttachFexit, capture.AttachKprobe, capture.AttachNone} {
		t.Run(string(attach), func(t *testing.T) {
			offer := probeOnce(attach)[0]
			if offer.Err != nil {
				refused(t, &offer)
			}
			dir := pinDir(t)
			one, two := filepath.Join(dir, "one"), filepath.Join(dir, "two")
			pinned(t, one, 8, 16, 100)
			pinned(t, two, 8, 16, 100)
			n1, n2 := newNode(t, 1, "ct="+one), newNode(t, 2, "ct="+two)
			n1.attach = attach
			n1.config.ScanInterval, n1.config.MaxScanInterval = base, limit
			startPair(t, n1, n2)
			scans := func() uint64 { return n1.status().Maps[0].Scan.Scans }
			interval := func() float64 { return n1.status().Maps[0].Scan.Interval }
			extended := func() bool { return interval() >= 10*base.Seconds() }
			if all := attach == capture.AttachFexit && attach.Detects(ebpf.Kprobe) && len(offer.Missing) == 0; !all {
				poll.Eventually(t, "more scans than it takes to extend the interval", func() bool { return scans() > 20 })
				if extended() {
					t.Errorf("interval without hooks for all writes: got %v s, want about %v s", interval(), base.Seconds())
				}
				return
			}
			poll.Eventually(t, "scans of the unchanged map are rare", extended)
			n2.stop()
			poll.Eventually(t, "scans are frequent after the loss of the peer", func() bool { return interval() < 2*base.Seconds() })
			poll.Within(t, 3*limit, "scans are rare again", extended)
		})
	}
}

// TestLateScansAreAProblem: scans take longer than their interval, and then syncd may use more of the CPU for them.
func TestLateScansAreAProblem(t *testing.T) {
	n, _, m, _ := twoNodes(t, 100_000)
	n.config.Join, n.config.ScanInterval, n.config.ScanBudget = nil, time.Second, 0.2
	n.start()
	poll.Eventually(t, "the node is ready", func() bool { return n.status().Ready })
	n.write(m, 0, 20_000, 1)
	n.shows("scan-late", problem.Warning)
	n.stop()
	n.config.ScanBudget = 100
	n.start()
	poll.Eventually(t, "a scan has ended", func() bool {
		s := n.status().Maps[0].Scan
		return s != nil && s.Last > 0
	})
	n.ends("scan-late")
}
