package latency_test

import (
	"net"
	"os"
	"slices"
	"testing"
	"time"

	"mapsync/internal/poll"
	"mapsync/syncd/latency"

	"github.com/cilium/ebpf/rlimit"
)

func TestMain(m *testing.M) {
	if err := rlimit.RemoveMemlock(); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// TestSoftirqsAndTimers sends packets over loopback, and waits for timers of the kernel.
func TestSoftirqsAndTimers(t *testing.T) {
	p, err := latency.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	began := time.Now()
	find := func(name string, list []latency.Runs, err error) *latency.Runs {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		if !slices.IsSortedFunc(list, func(a, b latency.Runs) int { return int(b.Longest - a.Longest) }) {
			t.Fatalf("runs: got %+v, want the longest first", list)
		}
		i := slices.IndexFunc(list, func(r latency.Runs) bool { return r.Name == name })
		if i < 0 {
			return &latency.Runs{}
		}
		return &list[i]
	}
	var net, timer latency.Runs
	poll.Eventually(t, "softirqs run", func() bool {
		for range 100 {
			if _, err := conn.WriteTo(make([]byte, 100), conn.LocalAddr()); err != nil {
				t.Fatal(err)
			}
		}
		list, err := p.Softirqs()
		net = *find("NET_RX", list, err)
		timer = *find("TIMER", list, err)
		return net.Runs >= 100 && timer.Runs > 0
	}, func() any { return net }, func() any { return timer })
	for _, r := range []latency.Runs{net, timer} {
		if r.Longest <= 0 || r.Longest > r.Total || r.Longest > time.Since(began) || r.Late > r.Runs {
			t.Errorf("runs: got %+v, want a longest one up to the total and the time of the test", r)
		}
	}
	poll.Eventually(t, "functions of timers have names", func() bool {
		list, err := p.Timers()
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(list, func(r latency.Runs) bool { return r.Name[0] != '0' && r.Longest > 0 })
	})
}
