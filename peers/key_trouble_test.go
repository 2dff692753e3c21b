package peers

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func TestWrongKey(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name           string
		mine, theirs   func(*Options)
		joiner, joined error
	}{
		{"other key", keys(keyOne), keys(keyTwo), ErrKeyDiffers, ErrKeyDiffers},
		{"key joins plain", keys(keyOne), keys(), ErrPeerPlain, ErrPeerEncrypted},
		{"plain joins key", keys(), keys(keyOne), ErrPeerEncrypted, ErrPeerPlain},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			b := start(t, "b", test.theirs)
			a := start(t, "a", test.mine, joining(b))
			eventually(t, 5*time.Second, "join fails for the key", func() bool { return errors.Is(a.JoinError(), test.joiner) })
			if text := a.JoinError().Error(); !strings.Contains(text, b.GossipAddr()) || strings.Contains(text, "\n") {
				t.Errorf("join error %q should name %s on one line", text, b.GossipAddr())
			}
			for _, side := range []struct {
				*node
				want error
			}{{a, test.joiner}, {b, test.joined}} {
				eventually(t, 5*time.Second, "it is counted", func() bool { return keyCounts(side.Stats())[side.want] > 1 })
				if n := side.logs.count("level=ERROR"); n != 1 {
					t.Errorf("%d errors logged by %s, want 1", n, side.opts.NodeName)
				}
				if side.logs.count("level=ERROR", "gossip", "127.0.0.1", "remedy=") != 1 {
					t.Errorf("error of %s does not name cause, peer and remedy", side.opts.NodeName)
				}
			}
			if len(a.Members())+len(b.Members()) != 0 {
				t.Error("nodes with unlike keys became members")
			}
		})
	}
}

func keyCounts(s Stats) map[error]uint64 {
	return map[error]uint64{ErrKeyDiffers: s.KeyDiffers, ErrPeerPlain: s.PeerPlain, ErrPeerEncrypted: s.PeerEncrypted}
}

// A member that comes back with another key, or none, still gets datagrams.
func TestKeyTroubleByDatagram(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name          string
		before, after func(*Options)
		change        []error
	}{
		// A member that encrypts sends to one that does not, and the reverse. A
		// plain ping to a node with a key looks like one with another key.
		{"lost its key", keys(keyOne), keys(), []error{ErrPeerEncrypted}},
		{"changed its key", keys(keyOne), keys(keyTwo), []error{ErrKeyDiffers}},
		{"got a key", keys(), keys(keyOne), []error{ErrPeerPlain, ErrKeyDiffers}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			a := start(t, "a", test.before)
			b := start(t, "b", test.before, joining(a))
			eventually(t, 5*time.Second, "both see each other", func() bool { return a.sees(b) && b.sees(a) })
			b.kill(t)
			addr := b.GossipAddr()
			b = start(t, "b", test.after, func(o *Options) { o.BindAddr = addr })
			eventually(t, 5*time.Second, "b hears a", func() bool {
				counts := keyCounts(b.Stats())
				for _, want := range test.change {
					if counts[want] > 0 {
						return b.logs.count("level=ERROR", "gossip", "peer=127.0.0.1", "remedy=") > 0
					}
				}
				return false
			})
			eventually(t, 10*time.Second, "a misses b", func() bool { return a.sees() })
		})
	}
}

func TestKeyRotation(t *testing.T) {
	t.Parallel()
	a := start(t, "a", keys(keyOne, keyTwo))
	b := start(t, "b", keys(keyTwo, keyOne), joining(a))
	eventually(t, 5*time.Second, "both see each other", func() bool { return a.sees(b) && b.sees(a) })
	if a.Stats().KeyDiffers+b.Stats().KeyDiffers != 0 {
		t.Error("keys that overlap were taken for unlike ones")
	}
}

// Keys change while nodes run, one node after the other, and no node is lost meanwhile.
func TestKeysRotateWhileRunning(t *testing.T) {
	t.Parallel()
	a := start(t, "a", keys(keyOne))
	b := start(t, "b", keys(keyOne), joining(a))
	c := start(t, "c", keys(keyOne), joining(a))
	nodes := []*node{a, b, c}
	see := func() bool { return a.sees(b, c) && b.sees(a, c) && c.sees(a, b) }
	eventually(t, 10*time.Second, "all see each other", see)
	for _, step := range [][]string{{keyOne, keyTwo}, {keyTwo, keyOne}, {keyTwo}} {
		for _, n := range nodes {
			var list [][]byte
			for _, key := range step {
				list = append(list, []byte(key))
			}
			if err := n.SetGossipKeys(list); err != nil {
				t.Fatal(err)
			}
			if got := n.ring.GetKeys(); len(got) != len(step) || string(got[0]) != step[0] {
				t.Fatalf("the ring has %q, want %q", got, step)
			}
			time.Sleep(200 * time.Millisecond) // some rounds of gossip with unlike rings
		}
		if !see() {
			t.Fatalf("a node was lost at step %q", step)
		}
	}
	for _, n := range nodes {
		if s := n.Stats(); s.KeyDiffers != 0 || s.Gone != 0 {
			t.Errorf("%+v", s)
		}
	}
	// The former key is a stranger's now.
	d := start(t, "d", keys(keyOne), joining(a))
	eventually(t, 5*time.Second, "the former key is refused", func() bool { return d.JoinError() != nil })
	if len(d.Members()) != 0 {
		t.Error("a node with the former key is a member")
	}
	if err := a.SetGossipKeys([][]byte{[]byte("short")}); err == nil || string(a.ring.GetPrimaryKey()) != keyTwo {
		t.Errorf("a key of 5 bytes: %v", err)
	}
	if err := a.SetGossipKeys(nil); err == nil {
		t.Error("encryption was switched off")
	}
}
