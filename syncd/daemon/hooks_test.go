package daemon_test

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"mapsync/internal/dataplane"
	"mapsync/internal/poll"
	"mapsync/syncd/capture"
	"mapsync/syncd/problem"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// kernelName returns the name of the test matrix's kernel, on which every test must run, or "" on
// other kernels.
func kernelName() string { return os.Getenv("MAPSYNC_KERNEL") }

// writeFrom makes a program write its own keys on one CPU, in process context, until stopped is
// set.
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

// entriesOf returns all entries of a map with 8-byte keys and 16-byte values.
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

// Two programs write on one CPU. A preemptible kernel preempts one of them inside a hook, and
// skips the hook for the other one. The hook counts the skipped run, and a scan follows at once:
// the next regular scan is an hour away.
func TestSkippedRunsAreRepaired(t *testing.T) {
	dir := pinDir(t)
	one, two := filepath.Join(dir, "one"), filepath.Join(dir, "two")
	m1, m2 := pinned(t, one, 8, 16, 1000), pinned(t, two, 8, 16, 1000)
	n1, n2 := newNode(t, 1, "ct="+one), newNode(t, 2, "ct="+two)
	n1.attach = capture.AttachFexit
	n1.config.ScanInterval, n2.config.ScanInterval = time.Hour, time.Hour
	needAttach(t, capture.AttachFexit)
	startPair(t, n1, n2)

	var stopped atomic.Bool
	a, b := writeFrom(t, m1, 0, 0, &stopped), writeFrom(t, m1, 0, 1000, &stopped)
	time.Sleep(3 * time.Second) // the duration of the load
	stopped.Store(true)
	for _, done := range []chan error{a, b} {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	want := entriesOf(t, m1)
	if len(want) != 128 {
		t.Fatalf("entries of the data plane: got %d, want 128", len(want))
	}
	poll.Eventually(t, "the peer's map holds the last written values", func() bool {
		got := entriesOf(t, m2)
		for key, value := range want {
			if got[key] != value {
				return false
			}
		}
		return len(got) == len(want)
	})
	poll.Eventually(t, "the losses are repaired", func() bool { return !n1.status().Capture.Losses.Open })
	c := n1.status().Capture
	t.Logf("%d runs, %d skipped, %d repairs", c.Events, c.Skipped, c.Losses.Repaired)
	// Since 6.11 a test run disables bottom halves, so that it is not preempted.
	if kernelName() == "6.1/preempt=full" && c.Skipped == 0 {
		t.Error("skipped runs on a preemptible kernel: got 0, want some")
	}
	if c.Skipped != 0 && (c.Losses.Repaired == 0 || !n1.log.contains("changes were lost, scanning")) {
		t.Errorf("%d skipped runs: got %+v, want them repaired and logged", c.Skipped, c.Losses)
	}
}

// With kprobe, the status names the programs whose writes only scans find.
func TestUndetectedPrograms(t *testing.T) {
	needAttach(t, capture.AttachKprobe)
	pin := filepath.Join(pinDir(t), "ct")
	m := pinned(t, pin, 8, 16, 100)
	// Programs use an inner map only through its map of maps.
	spec := &ebpf.MapSpec{Type: ebpf.Hash, KeySize: 8, ValueSize: 16, MaxEntries: 100}
	outerPin := filepath.Join(pinDir(t), "cpus")
	outer := pinnedAs(t, outerPin, &ebpf.MapSpec{Type: ebpf.ArrayOfMaps, KeySize: 4, ValueSize: 4, MaxEntries: 2, InnerMap: spec})
	inner, err := ebpf.NewMap(spec)
	if err != nil {
		t.Fatal(err)
	}
	defer inner.Close()
	if err := outer.Put(uint32(1), inner); err != nil {
		t.Fatal(err)
	}
	n := newNode(t, 1, "ct="+pin, "inner="+outerPin+"[1]")
	n.attach, n.config.Join = capture.AttachKprobe, nil
	load := func(name string, typ ebpf.ProgramType, m *ebpf.Map) *ebpf.Program {
		p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
			Name: name, Type: typ, License: "GPL",
			Instructions: asm.Instructions{asm.LoadMapPtr(asm.R1, m.FD()), asm.LoadImm(asm.R0, 0, asm.DWord), asm.Return()},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.Close() })
		return p
	}
	load("lb", ebpf.XDP, m)
	programs := []*ebpf.Program{load("tracer", ebpf.Kprobe, m), load("percpu", ebpf.Kprobe, outer)}
	n.start()
	poll.Eventually(t, "the status names the programs", func() bool {
		return len(n.status().Maps[0].UndetectedPrograms) > 0 && len(n.status().Maps[1].UndetectedPrograms) > 0
	})
	for i, want := range []string{"tracer", "percpu"} {
		if got := n.status().Maps[i].UndetectedPrograms; len(got) != 1 || !strings.HasPrefix(got[0], want+" (Kprobe, id ") {
			t.Errorf("programs whose writes to map %d are not detected: got %q, want %s", i, got, want)
		}
	}
	if !n.log.contains("writes of programs are found by scans only") || n.log.contains("lb (XDP") {
		t.Error("log: want the program tracer, and not lb")
	}
	n.shows("undetected-programs", problem.Warning, "only scans find the writes of program tracer")
	for _, p := range programs {
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
	}
	n.ends("undetected-programs")
}

// probed contains the results of capture.Probe. The methods that work do not change, and a probe takes an emulated machine seconds.
var probed struct {
	sync.Mutex
	results map[capture.Attach]capture.ProbeResult
}

// probeOnce returns the results of capture.Probe. It probes each method once.
func probeOnce(methods ...capture.Attach) (offers []capture.ProbeResult) {
	probed.Lock()
	defer probed.Unlock()
	if probed.results == nil {
		probed.results = make(map[capture.Attach]capture.ProbeResult)
	}
	for _, method := range methods {
		offer, ok := probed.results[method]
		if !ok {
			offer = capture.Probe(method)[0]
			probed.results[method] = offer
		}
		offers = append(offers, offer)
	}
	return offers
}

// refused skips the test because hooks cannot be attached by a method. On a kernel of the test matrix
// it fails the test, except where the kernel is known to lack fexit.
func refused(t *testing.T, offer *capture.ProbeResult) {
	t.Helper()
	lacksFexit := kernelName() == "6.1/arm64" && offer.Attach == capture.AttachFexit
	if kernelName() != "" && !lacksFexit {
		t.Fatalf("cannot run on kernel %s of the matrix: %v", kernelName(), offer.Err)
	}
	t.Skip(offer.Err)
}

// needAttach skips the test if hooks cannot be attached by this method. On a kernel of the test matrix
// it fails the test.
func needAttach(t *testing.T, attach capture.Attach) {
	t.Helper()
	if offer := probeOnce(attach)[0]; offer.Err != nil {
		refused(t, &offer)
	}
}
