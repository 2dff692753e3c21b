package daemon_test

import (
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"mapsync/internal/dataplane"
	"mapsync/syncd/capture"

	"github.com/cilium/ebpf"
)

// kernelName names the kernel of the matrix on which every test must run; it is empty on others.
func kernelName() string { return os.Getenv("MAPSYNC_KERNEL") }

// writeFrom has a program write its own keys on one CPU, in process context, until
// stopped.
func writeFrom(t *testing.T, m *ebpf.Map, cpu int, first uint64, stopped *atomic.Bool) (done chan error) {
	t.Helper()
	p, err := dataplane.Open(m, dataplane.Options{Capacity: 64, RunWrites: 4, Endless: true, NumberValues: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	for i := range uint64(64) {
		key, _ := pair(first+i, 0)
		p.Add(dataplane.Update, ebpf.UpdateAny, key, make([]byte, 16))
	}
	done = make(chan error, 1)
	go func() {
		unpin, err := dataplane.Pin(cpu)
		if err != nil {
			done <- err
			return
		}
		defer unpin()
		for err == nil && !stopped.Load() {
			err = p.RunOnce(64)
		}
		done <- err
	}()
	return done
}

// entriesOf returns all of a map of 8 + 16 bytes.
func entriesOf(t *testing.T, m *ebpf.Map) map[[8]byte][16]byte {
	t.Helper()
	var key [8]byte
	var value [16]byte
	all := make(map[[8]byte][16]byte)
	entries := m.Iterate()
	for entries.Next(&key, &value) {
		all[key] = value
	}
	if err := entries.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

// TestSkippedRunsAreRepaired has two programs write on one CPU. A preemptible kernel
// preempts one of them inside a hook, and skips the hook for the other. It counts that,
// and a scan follows at once: the next regular one is an hour away.
func TestSkippedRunsAreRepaired(t *testing.T) {
	dir := pinDir(t)
	one, two := filepath.Join(dir, "one"), filepath.Join(dir, "two")
	m1, m2 := pinned(t, one, 8, 16, 1000), pinned(t, two, 8, 16, 1000)
	n1, n2 := newNode(t, 1, "ct="+one), newNode(t, 2, "ct="+two)
	n1.attach = capture.AttachFexit
	n1.config.ScanInterval, n2.config.ScanInterval = time.Hour, time.Hour
	needFexit(t)
	startPair(t, n1, n2)

	var stopped atomic.Bool
	a, b := writeFrom(t, m1, 0, 0, &stopped), writeFrom(t, m1, 0, 1000, &stopped)
	time.Sleep(3 * time.Second)
	stopped.Store(true)
	for _, done := range []chan error{a, b} {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	want := entriesOf(t, m1)
	if len(want) != 128 {
		t.Fatalf("the data plane wrote %d entries, want 128", len(want))
	}
	eventually(t, "the peer's map holds what was written last", func() bool {
		got := entriesOf(t, m2)
		for key, value := range want {
			if got[key] != value {
				return false
			}
		}
		return len(got) == len(want)
	})
	eventually(t, "losses are repaired", func() bool { return !n1.status().Capture.Losses.Open })
	c := n1.status().Capture
	t.Logf("%d runs, %d skipped, %d repairs", c.Events, c.Skipped, c.Losses.Repaired)
	// From 6.11 on a test run keeps bottom halves off, and so is not preempted.
	if kernelName() == "6.1/preempt=full" && c.Skipped == 0 {
		t.Error("no run was skipped on a preemptible kernel")
	}
	if c.Skipped != 0 && (c.Losses.Repaired == 0 || !n1.log.contains("changes were lost, scanning")) {
		t.Errorf("%d skipped runs were not repaired: %+v", c.Skipped, c.Losses)
	}
}

// needFexit skips the test where fexit programs cannot be attached, and fails it on a
// kernel of the matrix.
func needFexit(t *testing.T) {
	t.Helper()
	for _, offer := range capture.Probe() {
		if offer.Attach != capture.AttachFexit || offer.Err == nil {
			continue
		}
		if kernelName() != "" {
			t.Fatalf("cannot run on kernel %s of the matrix: %v", kernelName(), offer.Err)
		}
		t.Skip(offer.Err)
	}
}
