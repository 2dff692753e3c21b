package daemon_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"mapsync/internal/dataplane"
	"mapsync/internal/poll"
	"mapsync/syncd/daemon"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

// timerSpec describes a map whose values have a state and a bpf_timer.
func timerSpec() *ebpf.MapSpec {
	u64 := &btf.Int{Name: "unsigned long long", Size: 8, Encoding: btf.Unsigned}
	u32 := &btf.Int{Name: "unsigned int", Size: 4, Encoding: btf.Unsigned}
	timer := &btf.Struct{Name: "bpf_timer", Size: 16, Members: []btf.Member{{Name: "__opaque", Type: &btf.Array{Type: u64, Index: u32, Nelems: 2}}}}
	value := &btf.Struct{Name: "session", Size: 24, Members: []btf.Member{{Name: "state", Type: u64}, {Name: "timer", Type: timer, Offset: 64}}}
	return &ebpf.MapSpec{Name: "ct", Type: ebpf.Hash, KeySize: 8, ValueSize: 24, MaxEntries: 1000, Key: u64, Value: value}
}

// putSessions writes sessions [from, to) by bpf(2).
func putSessions(t *testing.T, m *ebpf.Map, from, to uint64, state byte) {
	t.Helper()
	for i := from; i < to; i++ {
		value := make([]byte, 24)
		value[0] = state
		if err := m.Put(&i, value); err != nil {
			t.Fatalf("write session %d: %v", i, err)
		}
	}
}

// sessions returns how many of the sessions [from, to) a map holds.
func sessions(m *ebpf.Map, from, to uint64) (n int) {
	for i := from; i < to; i++ {
		if value, err := m.LookupBytes(&i); err == nil && value != nil {
			n++
		}
	}
	return n
}

// timerNode returns a node with a map of sessions, whose takeover-expiry is 3 s. Each use of a session changes its state.
func timerNode(t *testing.T, number int, dir string) (*node, *ebpf.Map) {
	t.Helper()
	pin := filepath.Join(dir, fmt.Sprint(number))
	m := pinnedAs(t, pin, timerSpec())
	n := newNode(t, number, "ct="+pin)
	n.config.ScanInterval, n.config.MaxScanInterval, n.config.RefreshInterval = 100*time.Millisecond, 100*time.Millisecond, 100*time.Millisecond
	n.config.DeadTime, n.config.TakeoverExpiries = 400*time.Millisecond, []string{"ct=3s:state"}
	return n, m
}

// TestTakenOverTimersExpire: three nodes have sessions whose timers only the owner has armed. The owner leaves, or is
// drained, and one of the others goes on to use some of its sessions. Those stay, on both nodes, and the others expire.
func TestTakenOverTimersExpire(t *testing.T) {
	t.Run("leaves", func(t *testing.T) { testTakenOverTimersExpire(t, func(n *node) { n.stop() }) })
	t.Run("drained", func(t *testing.T) { testTakenOverTimersExpire(t, (*node).drain) })
}

func testTakenOverTimersExpire(t *testing.T, leave func(*node)) {
	const all, used, own = 60, 20, 10
	dir := pinDir(t)
	var nodes [3]*node
	var maps [3]*ebpf.Map
	for i := range nodes {
		nodes[i], maps[i] = timerNode(t, i+1, dir)
		nodes[i].start()
	}
	poll.Eventually(t, "all nodes are ready", func() bool {
		for _, n := range nodes {
			if s := n.status(); !s.Ready || len(s.Peers) != 2 {
				return false
			}
		}
		return true
	})
	putSessions(t, maps[0], 0, all, 1)
	putSessions(t, maps[1], all, all+own, 1)
	held := func(m *ebpf.Map) bool { return sessions(m, 0, all+own) == all+own }
	poll.Eventually(t, "all nodes have all sessions", func() bool { return held(maps[1]) && held(maps[2]) })
	poll.Stays(t, 4*time.Second, "the sessions of live nodes stay", func() bool { return held(maps[1]) && held(maps[2]) })

	leave(nodes[0])
	state := byte(2)
	poll.Within(t, time.Minute, "the sessions without use expire on both nodes, the others are in use", func() bool {
		putSessions(t, maps[2], 0, used, state)
		state ^= 1 // 2 and 3
		return sessions(maps[1], used, all)+sessions(maps[2], used, all) == 0
	}, func() any {
		return fmt.Sprintf("%d and %d left", sessions(maps[1], used, all), sessions(maps[2], used, all))
	})
	for i, m := range maps[1:] {
		if got := sessions(m, 0, used); got != used {
			t.Errorf("used sessions on node %d: got %d, want %d", i+2, got, used)
		}
		if got := sessions(m, all, all+own); got != own {
			t.Errorf("sessions of the live node on node %d: got %d, want %d", i+2, got, own)
		}
	}
}

// beginDrain drains the node, as soon as a peer can take over.
func (n *node) beginDrain() {
	n.t.Helper()
	poll.Eventually(n.t, "the drain begins", func() bool { _, err := n.client.Drain(n.t.Context(), false); return err == nil })
}

// drain drains the node and waits for the handover.
func (n *node) drain() {
	n.t.Helper()
	n.beginDrain()
	poll.Eventually(n.t, "the handover is complete", func() bool {
		h, err := n.client.Handover(n.t.Context())
		return err == nil && h.Done
	})
}

// TestTakenOverTimersExpireAfterRestart: the owner of sessions leaves while the other node restarts. The other node finds
// them in its map, without a timer, and their owner in the stop file. They expire once that owner counts as gone, a minute
// after the start, unless the node goes on to use them. Its own sessions have timers, and stay.
func TestTakenOverTimersExpireAfterRestart(t *testing.T) {
	const all, used, own = 60, 20, 10
	dir := pinDir(t)
	n1, m1 := timerNode(t, 1, dir)
	n2, m2 := timerNode(t, 2, dir)
	startPair(t, n1, n2)
	putSessions(t, m1, 0, all, 1)
	kept := uint64(all)
	if err := dataplane.HasTimers(); err == nil {
		kept = all + own
	} else if !errors.Is(err, ebpf.ErrNotSupported) {
		t.Fatal(err)
	}
	putSessions(t, m2, all, kept, 1)
	for i := uint64(all); i < kept; i++ {
		if err := dataplane.InitTimer(m2, binary.NativeEndian.AppendUint64(nil, i), 8); err != nil {
			t.Fatal(err)
		}
	}
	poll.Eventually(t, "both nodes have all sessions", func() bool {
		return sessions(m1, 0, kept) == int(kept) && sessions(m2, 0, kept) == int(kept)
	})
	n2.stop() // first: it must not see the owner leave
	n1.stop()
	if got := sessions(m2, 0, kept); got != int(kept) {
		t.Fatalf("sessions before the restart: got %d, want %d", got, kept)
	}
	n2.start()
	state := byte(2)
	poll.Within(t, 3*time.Minute, "the sessions without use expire, the others are in use", func() bool {
		putSessions(t, m2, 0, used, state)
		state ^= 1 // 2 and 3
		return sessions(m2, used, all) == 0
	}, func() any { return fmt.Sprintf("%d left", sessions(m2, used, all)) })
	poll.Stays(t, time.Second, "used sessions and those with timers stay", func() bool {
		putSessions(t, m2, 0, used, state)
		state ^= 1
		return sessions(m2, 0, used) == used && sessions(m2, all, kept) == int(kept-all)
	})
}

// TestTimersMissingInASchemaFile: the object file in the settings describes entries of the same size without the timer.
func TestTimersMissingInASchemaFile(t *testing.T) {
	for setting, want := range map[string]daemon.MapState{"": daemon.MapRefused, "tight=never": daemon.MapReplicating} {
		t.Run(setting, func(t *testing.T) {
			spec := timerSpec()
			timer := spec.Value.(*btf.Struct).Members[1].Type
			octet := &btf.Int{Name: "unsigned char", Size: 1}
			rest := &btf.Array{Type: octet, Index: &btf.Int{Name: "unsigned int", Size: 4}, Nelems: 18}
			spec.Name, spec.KeySize, spec.Key, spec.ValueSize = "tight", 4, &btf.Int{Name: "unsigned int", Size: 4}, 34
			spec.Value = &btf.Struct{Name: "session", Size: 34, Members: []btf.Member{{Name: "timer", Type: timer}, {Name: "rest", Type: rest, Offset: 128}}}
			pin := filepath.Join(pinDir(t), "tight")
			pinnedAs(t, pin, spec)
			n := newNode(t, 1, "tight="+pin)
			n.config.Join, n.config.Schemas = nil, []string{"tight=../schema/testdata/layouts.o"}
			if setting != "" {
				n.config.TakeoverExpiries = []string{setting}
			}
			n.start()
			poll.Eventually(t, "the map is "+string(want), func() bool { return n.status().Maps[0].State == want })
			if text := n.status().Maps[0].Error; want == daemon.MapRefused && !strings.Contains(text, "takeover-expiry: tight=DURATION") {
				t.Errorf("reason: got %q, want one with the remedy", text)
			}
		})
	}
}

// TestTimersNeedATakeoverExpiry: a map with timers is refused unless the settings have a rule for it.
func TestTimersNeedATakeoverExpiry(t *testing.T) {
	for setting, want := range map[string]daemon.MapState{"": daemon.MapRefused, "ct=2m:state": daemon.MapReplicating, "ct=never": daemon.MapReplicating} {
		t.Run(setting, func(t *testing.T) {
			pin := filepath.Join(pinDir(t), "ct")
			pinnedAs(t, pin, timerSpec())
			n := newNode(t, 1, "ct="+pin)
			if n.config.Join = nil; setting != "" {
				n.config.TakeoverExpiries = []string{setting}
			}
			n.start()
			poll.Eventually(t, "the map is "+string(want), func() bool { return n.status().Maps[0].State == want })
			const remedy = "takeover-expiry: ct=DURATION, or ct=never"
			if text := n.status().Maps[0].Error; want == daemon.MapRefused && !strings.Contains(text, remedy) {
				t.Errorf("reason: got %q, want one with the remedy", text)
			}
			found := daemon.Check(t.Context(), &n.config)
			if got := slices.ContainsFunc(found, func(f daemon.Finding) bool { return strings.Contains(f.Problem, remedy) }); got != (want == daemon.MapRefused) {
				t.Errorf("check: got findings %+v, want the remedy: %t", found, want == daemon.MapRefused)
			}
		})
	}
}
