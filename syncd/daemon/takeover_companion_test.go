package daemon_test

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"mapsync/internal/poll"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

// The sessions of a NAT and its bindings, which a timer's callback frees with their last session.
const (
	natSessions = 60
	natBindings = 12
	natUsed     = 20                                  // sessions in use after the takeover
	natUsedTo   = natUsed * natBindings / natSessions // their bindings
)

// companionNode returns a node with a map of sessions with timers, and one of bindings: the number of a binding's sessions,
// and when a packet has last used it.
func companionNode(t *testing.T, number int, dir string, expiries ...string) (n *node, sessions, bindings *ebpf.Map) {
	t.Helper()
	n, sessions = timerNode(t, number, dir)
	u64 := &btf.Int{Name: "unsigned long long", Size: 8, Encoding: btf.Unsigned}
	pin := filepath.Join(dir, fmt.Sprint("nat", number))
	bindings = pinnedAs(t, pin, &ebpf.MapSpec{
		Name: "nat", Type: ebpf.Hash, KeySize: 8, ValueSize: 16, MaxEntries: 100, Key: u64,
		Value: &btf.Struct{Name: "binding", Size: 16, Members: []btf.Member{{Name: "sessions", Type: u64}, {Name: "used", Type: u64, Offset: 64}}},
	})
	n.config.Maps = append(n.config.Maps, "nat="+pin)
	n.config.TakeoverExpiries = append(n.config.TakeoverExpiries, expiries...)
	return n, sessions, bindings
}

// putBindings writes bindings [0, to).
func putBindings(t *testing.T, m *ebpf.Map, to, used uint64) {
	t.Helper()
	for i := range to {
		if err := m.Put(&i, &[2]uint64{natSessions / natBindings, used}); err != nil {
			t.Fatalf("write binding %d: %v", i, err)
		}
	}
}

// TestCompanionMap: no takeover lowers the count of a binding, so all bindings of a node that has left stay, those of
// sessions that have expired too, until an operator removes them, or until their own takeover-expiry.
func TestCompanionMap(t *testing.T) {
	t.Run("without a setting", func(t *testing.T) { testCompanionMap(t, false) })
	t.Run("own expiry", func(t *testing.T) { testCompanionMap(t, true, "nat=3s:used") })
}

func testCompanionMap(t *testing.T, expire bool, expiries ...string) {
	dir := pinDir(t)
	n1, s1, b1 := companionNode(t, 1, dir, expiries...)
	n2, s2, b2 := companionNode(t, 2, dir, expiries...)
	startPair(t, n1, n2)
	putSessions(t, s1, 0, natSessions, 1)
	putBindings(t, b1, natBindings, 1)
	poll.Eventually(t, "the other node has all entries", func() bool {
		return sessions(s2, 0, natSessions) == natSessions && sessions(b2, 0, natBindings) == natBindings
	})
	n1.stop()
	round := uint64(2)
	use := func() {
		putSessions(t, s2, 0, natUsed, byte(round))
		putBindings(t, b2, natUsedTo, round)
		round ^= 1 // 2 and 3
	}
	left := func() int { return sessions(b2, natUsedTo, natBindings) }
	poll.Within(t, time.Minute, "the sessions without use expire", func() bool {
		use()
		return sessions(s2, natUsed, natSessions) == 0 && (!expire || left() == 0)
	}, func() any {
		return fmt.Sprintf("%d left, with %d bindings", sessions(s2, natUsed, natSessions), left())
	})
	if !expire {
		poll.Stays(t, 4*time.Second, "all bindings stay", func() bool {
			use()
			return left() == natBindings-natUsedTo
		})
		poll.Within(t, time.Minute, "a purge removes those without use", func() bool {
			use()
			_, err := n2.client.PurgeUnused(t.Context(), "nat", 3*time.Second, true)
			return err == nil && left() == 0
		}, func() any { return fmt.Sprintf("%d left", left()) })
	}
	if s, b := sessions(s2, 0, natUsed), sessions(b2, 0, natUsedTo); s != natUsed || b != natUsedTo {
		t.Errorf("entries in use: got %d sessions and %d bindings, want %d and %d", s, b, natUsed, natUsedTo)
	}
}
