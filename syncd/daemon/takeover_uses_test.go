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
	"mapsync/syncd/capture"
	"mapsync/syncd/daemon"

	"github.com/cilium/ebpf"
)

// openLookups returns a function that sends a packet for each of the first sessions of a map. A packet looks its session up
// and changes nothing, like one that only restarts a timer.
func openLookups(t *testing.T, m *ebpf.Map, sessions uint64) (send func()) {
	t.Helper()
	p, err := dataplane.Open(m, dataplane.Options{Capacity: int(sessions), Endless: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	receiver, err := p.Receive()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = receiver.Close() })
	for i := range sessions {
		value := make([]byte, 24)
		value[0] = 1 // the state that it has
		p.Add(dataplane.InPlace, 0, binary.NativeEndian.AppendUint64(nil, i), value)
	}
	return func() {
		if err := receiver.Send(p, 0, int(sessions)); err != nil {
			t.Fatal(err)
		}
	}
}

// pacedUses makes the uses of entries by a test, and measures the time between them.
type pacedUses struct {
	send    func()
	entries uint64
	idle    time.Duration // after it, an entry counts as unused
	began   time.Time     // of the last uses
	longest time.Duration // between uses of an entry
}

func (u *pacedUses) use() {
	now := time.Now()
	u.send()
	u.longest, u.began = max(u.longest, time.Since(u.began)), now
}

// slow reports whether the uses were too rare to show that an entry is in use, because the machine is busy.
func (u *pacedUses) slow() bool { return max(u.longest, time.Since(u.began)) > u.idle/4 }

// untilFastEnough runs a test of uses with the time after which an entry counts as unused. The test returns false if its uses were
// too rare for that time. It then runs again with twice the time.
func untilFastEnough(t *testing.T, idle time.Duration, test func(t *testing.T, idle time.Duration) bool) {
	t.Helper()
	for enough := false; !enough; idle *= 2 {
		if idle > 2*time.Minute {
			t.Fatalf("uses by the test: got too few for a time of %v, want more", idle/2)
		}
		if !t.Run(idle.String(), func(t *testing.T) { enough = test(t, idle) }) {
			return
		}
	}
}

// hookedTimerNode returns a node like timerNode whose hook on lookups shows uses.
func hookedTimerNode(t *testing.T, number int, dir string, expiry time.Duration) (*node, *ebpf.Map) {
	t.Helper()
	n, m := timerNode(t, number, dir)
	n.attach, n.config.TakeoverExpiries = capture.AttachFexit, []string{"ct=" + expiry.String()}
	return n, m
}

// TestUsedTimersStay: the data plane of a NAT never changes a session, and its packets only look the session up. The owner
// leaves. The sessions in use on one of the others stay on both, also over a restart of syncd. Those without use expire,
// and the others do once their use ends.
func TestUsedTimersStay(t *testing.T) {
	needAttach(t, capture.AttachFexit)
	untilFastEnough(t, 3*time.Second, testUsedTimersStay)
}

func testUsedTimersStay(t *testing.T, expiry time.Duration) bool {
	const all, used = 60, 30
	dir := pinDir(t)
	n1, m1 := timerNode(t, 1, dir)
	n2, m2 := hookedTimerNode(t, 2, dir, expiry)
	n3, m3 := hookedTimerNode(t, 3, dir, expiry)
	nodes := []*node{n1, n2, n3}
	for _, n := range nodes {
		n.start()
	}
	poll.Eventually(t, "all nodes are ready", func() bool {
		return !slices.ContainsFunc(nodes, func(n *node) bool { s := n.status(); return !s.Ready || len(s.Peers) != 2 })
	})
	putSessions(t, m1, 0, all, 1)
	poll.Eventually(t, "all nodes have all sessions", func() bool { return sessions(m2, 0, all) == all && sessions(m3, 0, all) == all })
	u := &pacedUses{send: openLookups(t, m2, used), entries: used, idle: expiry, began: time.Now()}
	n1.stop()
	if !usedStay(t, u, "the sessions without use expire on both nodes", func() bool {
		return sessions(m2, used, all)+sessions(m3, used, all) == 0
	}, m2, m3) {
		return false
	}
	began := time.Now()
	if !usedStay(t, u, "four times takeover-expiry have passed", func() bool { return time.Since(began) > 4*expiry }, m2, m3) {
		return false
	}
	n3.stop() // a node that is away for longer than takeover-expiry counts as departed
	n2.stop()
	began = time.Now()
	u.began = began
	n2.start()
	if !usedStay(t, u, "three times takeover-expiry have passed since a restart", func() bool { return time.Since(began) > 3*expiry }, m2) {
		return false
	}
	poll.Within(t, time.Minute+5*expiry, "sessions expire once their use ends", func() bool { return sessions(m2, 0, used) == 0 },
		func() any { return fmt.Sprintf("%d left", sessions(m2, 0, used)) })
	return true
}

// usedStay uses sessions until a condition holds. It fails the test if a session in use is not in each of the maps. It returns
// false if that is so after uses that were too rare.
func usedStay(t *testing.T, u *pacedUses, what string, done func() bool, maps ...*ebpf.Map) (stay bool) {
	t.Helper()
	poll.Within(t, time.Minute+5*u.idle, what, func() bool {
		u.use()
		for i, m := range maps {
			if stay = uint64(sessions(m, 0, u.entries)) == u.entries; stay {
				continue
			}
			if !u.slow() {
				t.Fatalf("used sessions of map %d until %s: got %d, want %d", i, what, sessions(m, 0, u.entries), u.entries)
			}
			t.Logf("%v between two uses with takeover-expiry %v", u.longest, u.idle)
			return true
		}
		return done()
	})
	return stay
}

// TestPurgeOfUnusedEntries: an operator removes the sessions of a departed owner that are not in use. syncd refuses while it has
// not observed uses for long enough, and on a map whose uses it does not see.
func TestPurgeOfUnusedEntries(t *testing.T) {
	needAttach(t, capture.AttachFexit)
	untilFastEnough(t, 4*time.Second, testPurgeOfUnusedEntries)
}

func testPurgeOfUnusedEntries(t *testing.T, idle time.Duration) bool {
	const all, used = 60, 30
	dir := pinDir(t)
	n1, m1 := timerNode(t, 1, dir)
	n2, m2 := hookedTimerNode(t, 2, dir, time.Hour)
	startPair(t, n1, n2)
	putSessions(t, m1, 0, all, 1)
	poll.Eventually(t, "the other node has all sessions", func() bool { return sessions(m2, 0, all) == all })
	if _, err := n2.client.PurgeUnused(t.Context(), "ct", time.Hour, false); err == nil || !strings.Contains(err.Error(), "observed for") {
		t.Errorf("purge before uses are observed: got error %v, want it refused", err)
	}
	u := &pacedUses{send: openLookups(t, m2, used), entries: used, idle: idle, began: time.Now()}
	n1.stop()
	var removed int
	if !usedStay(t, u, "the sessions without use are removed", func() bool {
		done, err := n2.client.PurgeUnused(t.Context(), "ct", idle, false)
		if err == nil {
			removed += done.Maps[0].Records
		}
		return sessions(m2, used, all) == 0
	}, m2) {
		return false
	}
	got := sessions(m2, 0, used)
	if got == used && removed == all-used {
		return true
	}
	if !u.slow() {
		t.Errorf("sessions in use: got %d with %d removed, want %d with %d", got, removed, used, all-used)
	}
	return false
}

// TestPurgeOfUnchangedEntries: without the hook on lookups, a purge of unused entries needs a field that each use changes, or
// compares with the last change by force.
func TestPurgeOfUnchangedEntries(t *testing.T) {
	for _, setting := range []string{"ct=1h:state", "ct=never"} {
		t.Run(setting, func(t *testing.T) {
			const all, used = 60, 20
			dir := pinDir(t)
			n1, m1 := timerNode(t, 1, dir)
			n2, m2 := timerNode(t, 2, dir)
			n2.config.TakeoverExpiries = []string{setting}
			startPair(t, n1, n2)
			putSessions(t, m1, 0, all, 1)
			poll.Eventually(t, "the other node has all sessions", func() bool { return sessions(m2, 0, all) == all })
			n1.stop()
			forced := setting == "ct=never"
			if _, err := n2.client.PurgeUnused(t.Context(), "ct", 3*time.Second, false); forced && (err == nil || !strings.Contains(err.Error(), "--force")) {
				t.Errorf("purge without visible uses: got error %v, want one that names --force", err)
			}
			state := byte(2)
			poll.Within(t, time.Minute, "the sessions without a change are removed", func() bool {
				putSessions(t, m2, 0, used, state)
				state ^= 1 // 2 and 3
				_, err := n2.client.PurgeUnused(t.Context(), "ct", 3*time.Second, forced)
				return err == nil && sessions(m2, used, all) == 0
			}, func() any { return fmt.Sprintf("%d left", sessions(m2, used, all)) })
			if got := sessions(m2, 0, used); got != used {
				t.Errorf("changed sessions: got %d, want %d", got, used)
			}
		})
	}
}

// TestTakeoverExpiryNeedsVisibleUses: a map is refused if entries would expire although syncd does not see their uses: without
// the hook on lookups, or with a field that scans do not compare.
func TestTakeoverExpiryNeedsVisibleUses(t *testing.T) {
	for setting, want := range map[string]string{
		"ct=2m":         "would end sessions in use",
		"ct=2m:timer":   "field timer is not sent",
		"ct=2m:unknown": "unknown field",
		"ct=2m:key.a":   "field",
		"ct=2m:state":   "",
		"ct=never":      "",
	} {
		t.Run(setting, func(t *testing.T) {
			pin := filepath.Join(pinDir(t), "ct")
			pinnedAs(t, pin, timerSpec())
			n := newNode(t, 1, "ct="+pin)
			n.config.Join, n.config.TakeoverExpiries = nil, []string{setting}
			n.start()
			state := daemon.MapReplicating
			if want != "" {
				state = daemon.MapRefused
			}
			poll.Eventually(t, "the map is "+string(state), func() bool { return n.status().Maps[0].State == state })
			if text := n.status().Maps[0].Error; !strings.Contains(text, want) {
				t.Errorf("reason: got %q, want %q", text, want)
			}
			n.config.Attach = string(capture.AttachNone)
			found := daemon.Check(t.Context(), &n.config)
			refused := slices.ContainsFunc(found, func(f daemon.Finding) bool {
				return f.Severity == daemon.SeverityError && f.Setting == "takeover-expiry" && strings.Contains(f.Problem, want)
			})
			if refused != (want != "") {
				t.Errorf("check: got findings %+v, want the map refused: %t", found, want != "")
			}
		})
	}
}

// TestPurgeOfAnUnknownDuration: a bad duration is a wrong use, and removes nothing.
func TestPurgeOfAnUnknownDuration(t *testing.T) {
	pin := filepath.Join(pinDir(t), "ct")
	m := pinned(t, pin, 8, 8, 100)
	n := newNode(t, 1, "ct="+pin)
	n.config.Join = nil
	n.start()
	poll.Eventually(t, "the node is ready", func() bool { return n.status().Ready })
	n.write(m, 0, 10, 7)
	if _, err := n.client.PurgeUnused(t.Context(), "ct", -time.Second, true); !errors.Is(err, daemon.ErrUse) {
		t.Errorf("purge with a negative duration: got error %v, want ErrUse", err)
	}
}
