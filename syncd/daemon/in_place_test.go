package daemon_test

import (
	"path/filepath"
	"testing"
	"time"

	"mapsync/internal/dataplane"
	"mapsync/internal/poll"
	"mapsync/syncd/capture"
	"mapsync/syncd/problem"

	"github.com/cilium/ebpf"
)

// TestHookedChangesInPlaceReachPeers: packets change entries in place, new ones and those that a node received
// before. With in-place: hook the last change of each entry reaches the peer without a scan.
func TestHookedChangesInPlaceReachPeers(t *testing.T) {
	needAttach(t, capture.AttachFexit)
	const entries = 50
	dir := pinDir(t)
	one, two := filepath.Join(dir, "one"), filepath.Join(dir, "two")
	m1, m2 := pinned(t, one, 8, 8, 1000), pinned(t, two, 8, 8, 1000)
	n1, n2 := newNode(t, 1, "ct="+one), newNode(t, 2, "ct="+two)
	n1.attach, n1.config.InPlace = capture.AttachFexit, []string{"ct=hook"}
	n1.config.ScanInterval = time.Hour
	n2.config.ScanInterval, n2.config.MaxScanInterval = 500*time.Millisecond, 500*time.Millisecond // it has no hooks
	startPair(t, n1, n2)
	if how := [2]string{n1.status().Maps[0].InPlace, n2.status().Maps[0].InPlace}; how != [2]string{"hook", "scan"} {
		t.Errorf("how the nodes find changes in place: got %v, want hook and scan", how)
	}
	for i := range uint64(entries) {
		key, value := pair(i, 1)
		if err := m2.Put(key, value); err != nil {
			t.Fatal(err)
		}
	}
	poll.Eventually(t, "the node has the entries of its peer", func() bool { return lacks(m1, entries, 1) == 0 })

	p, err := dataplane.Open(m1, dataplane.Options{Capacity: 2 * entries})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	receiver, err := p.Receive()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = receiver.Close() })
	for i := range uint64(entries) {
		key, value := pair(entries+i, 0)
		p.Add(dataplane.Update, ebpf.UpdateAny, key, value)
	}
	if err := receiver.Send(p, 0, entries); err != nil {
		t.Fatal(err)
	}
	for round := uint64(1); round <= 3; round++ {
		p.Reset()
		for i := range uint64(2 * entries) {
			key, value := pair(i, 1000+round)
			p.Add(dataplane.InPlace, 0, key, value)
		}
		if err := receiver.Send(p, 0, 2*entries); err != nil {
			t.Fatal(err)
		}
		poll.Eventually(t, "the peer has the last changes in place", func() bool { return lacks(m2, 2*entries, 1000+round) == 0 })
	}
	if s := n1.status(); s.Maps[0].Scan.Found != 0 || s.Capture.Lookups == 0 {
		t.Errorf("differences found by scans: got %d, with %d lookups, want 0 with some", s.Maps[0].Scan.Found, s.Capture.Lookups)
	}
}

// TestInPlaceWithoutHook: without the hook on lookups, a daemon logs the reason, and scans.
func TestInPlaceWithoutHook(t *testing.T) {
	pin := filepath.Join(pinDir(t), "ct")
	pinned(t, pin, 8, 16, 100)
	n := newNode(t, 1, "ct="+pin)
	n.config.Join, n.config.InPlace = nil, []string{"ct=hook"}
	n.start()
	poll.Eventually(t, "the log names the reason", func() bool {
		return n.log.contains("lookups are not hooked, changes in place are found by scans")
	})
	if s := n.status().Maps[0]; s.InPlace != "scan" || s.InPlaceProblem == "" {
		t.Errorf("how changes in place are found: got %q, problem %q, want scan with a problem", s.InPlace, s.InPlaceProblem)
	}
	n.shows("in-place-unavailable", problem.Warning)
	n.stop()
	n.config.InPlace = nil
	n.start()
	n.ends("in-place-unavailable")
}
