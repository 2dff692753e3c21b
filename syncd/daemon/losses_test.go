package daemon_test

import (
	"strings"
	"testing"
	"time"

	"mapsync/internal/poll"
	"mapsync/syncd/daemon"
	"mapsync/syncd/problem"

	"github.com/cilium/ebpf"
)

// A burst that a small ring cannot hold is repaired by a scan at once. The next regular scan is
// an hour away.
func TestLostEventsAreRepaired(t *testing.T) {
	n1, n2, m1, m2 := twoNodes(t, 10000)
	n1.config.BufferSize = 4096
	n1.config.ScanInterval, n2.config.ScanInterval = time.Hour, time.Hour
	startPair(t, n1, n2)
	for round := range uint64(3) {
		n1.write(m1, 0, 5000, round)
		poll.Eventually(t, "the peer's map holds all entries", func() bool { return holds(t, m2, 5000, round) })
	}
	for i := range uint64(4000) {
		key, _ := pair(1000+i, 0)
		if err := m1.Delete(key); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := n1.client.PauseScans(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	n1.write(m1, 0, 1000, 9) // loses some events, so that a scan also finds the deletes that no hook detected
	n1.shows("losses-open", problem.Warning, "events were lost")
	if _, err := n1.client.ResumeScans(t.Context()); err != nil {
		t.Fatal(err)
	}
	poll.Eventually(t, "the peer's map holds the remaining entries", func() bool { return holds(t, m2, 1000, 9) })
	poll.Eventually(t, "the losses are repaired", func() bool { return !n1.status().Capture.Losses.Open })
	n1.ends("losses-open")
	s := n1.status()
	if s.Capture.Lost == 0 || s.Capture.Losses.Repaired == 0 || s.Maps[0].Scan.Urgent == 0 || s.Maps[0].Scan.Found == 0 {
		t.Errorf("capture and scans: got %+v, %+v, want repaired losses found by an urgent scan", s.Capture, s.Maps[0].Scan)
	}
	for _, line := range []string{"changes were lost, scanning", "losses repaired"} {
		if !n1.log.contains(line) {
			t.Errorf("log: want %q", line)
		}
	}
	if s := n2.status(); s.Capture.Losses != (daemon.LossStatus{}) || s.Maps[0].Scan.Urgent != 0 {
		t.Errorf("capture and scans of the other node: got %+v, %+v, want no losses and no urgent scan", s.Capture, s.Maps[0].Scan)
	}
	metrics := n1.metrics()
	for _, want := range []string{
		"mapsync_capture_losses_open 0\n", "mapsync_capture_losses_repaired_total ", `mapsync_scan_found_total{map="ct"} `,
		`mapsync_scan_interval_seconds{map="ct"} 3600`, `mapsync_scan_seconds{map="ct"} `, `mapsync_scans_total{kind="urgent",map="ct"} `,
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("metrics: want %s", want)
		}
	}
}

// If a scan finds that an entry of this node is absent, this is a delete. An absent entry of
// another owner expired.
func TestDeletesFoundByTheScan(t *testing.T) {
	n1, n2, m1, m2 := twoNodes(t, 1000)
	n1.config.ScanInterval, n2.config.ScanInterval = 200*time.Millisecond, 200*time.Millisecond
	startPair(t, n1, n2)
	n1.write(m1, 0, 500, 7)
	poll.Eventually(t, "the peer's map holds all entries", func() bool { return holds(t, m2, 500, 7) })
	remove := func(m *ebpf.Map, from, to uint64) {
		for i := from; i < to; i++ {
			key, _ := pair(i, 0)
			if err := m.Delete(key); err != nil {
				t.Fatal(err)
			}
		}
	}
	remove(m2, 0, 500) // the standby's garbage collector treats all sessions as idle
	poll.Eventually(t, "the standby's entries are restored", func() bool { return holds(t, m2, 500, 7) })
	if !holds(t, m1, 500, 7) {
		t.Error("map of the owner: got entries expired by the standby's deletes, want all entries")
	}
	remove(m1, 400, 500)
	poll.Eventually(t, "the owner's deletes reach both maps", func() bool { return holds(t, m1, 400, 7) && holds(t, m2, 400, 7) })
}

// Without hooks, scans alone replicate in both directions.
func TestScansAloneReplicate(t *testing.T) {
	n1, n2, m1, m2 := twoNodes(t, 1000)
	for _, n := range []*node{n1, n2} {
		n.config.Attach, n.config.ScanInterval = "none", 100*time.Millisecond
	}
	startPair(t, n1, n2)
	put := func(m *ebpf.Map, from, to, v uint64) {
		for i := from; i < to; i++ {
			key, value := pair(i, v)
			if err := m.Put(key, value); err != nil {
				t.Fatal(err)
			}
		}
	}
	put(m1, 0, 300, 7)
	put(m2, 300, 500, 7)
	poll.Eventually(t, "both maps hold all entries", func() bool { return holds(t, m1, 500, 7) && holds(t, m2, 500, 7) })
	put(m2, 0, 500, 8) // the last writer becomes the owner
	poll.Eventually(t, "both maps hold the newer values", func() bool { return holds(t, m1, 500, 8) && holds(t, m2, 500, 8) })
	for i := range uint64(250) {
		key, _ := pair(250+i, 0)
		if err := m2.Delete(key); err != nil {
			t.Fatal(err)
		}
	}
	poll.Eventually(t, "the owner's deletes reach both maps", func() bool { return holds(t, m1, 250, 8) && holds(t, m2, 250, 8) })
	if s := n1.status(); s.Capture.Attach != "none" || s.Capture.Events != 0 {
		t.Errorf("capture: got %+v, want attach none and no events", s.Capture)
	}
}
