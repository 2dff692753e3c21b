package peers

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"mapsync/internal/poll"
)

func TestGossipKeyMismatch(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name           string
		mine, theirs   func(*Options)
		joiner, joined error
	}{
		{"other key", keys(keyOne), keys(keyTwo), ErrKeyDiffers, ErrKeyDiffers},
		{"encrypted joins unencrypted", keys(keyOne), keys(), ErrPeerUnencrypted, ErrPeerEncrypted},
		{"unencrypted joins encrypted", keys(), keys(keyOne), ErrPeerEncrypted, ErrPeerUnencrypted},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			b := start(t, "b", test.theirs)
			a := start(t, "a", test.mine, joining(b))
			poll.Within(t, 5*time.Second, "join fails because of the key", func() bool { return errors.Is(a.JoinError(), test.joiner) })
			if text := a.JoinError().Error(); !strings.Contains(text, b.GossipAddr()) || strings.Contains(text, "\n") {
				t.Errorf("JoinError: got %q, want one line that contains %s", text, b.GossipAddr())
			}
			for _, side := range []struct {
				*node
				want error
			}{{a, test.joiner}, {b, test.joined}} {
				poll.Within(t, 5*time.Second, "the mismatch is counted", func() bool { return keyCounts(side.Stats())[side.want] > 1 })
				if n := side.logs.count("level=ERROR"); n != 1 {
					t.Errorf("logged errors: got %d by %s, want 1", n, side.opts.NodeName)
				}
				if side.logs.count("level=ERROR", "gossip", "127.0.0.1", "hint=") != 1 {
					t.Errorf("error of %s: want cause, peer and remedy", side.opts.NodeName)
				}
			}
			if len(a.Members())+len(b.Members()) != 0 {
				t.Error("nodes with different keys: got members, want none")
			}
		})
	}
}

func keyCounts(s Stats) map[error]uint64 {
	return map[error]uint64{ErrKeyDiffers: s.KeyDiffers, ErrPeerUnencrypted: s.PeerUnencrypted, ErrPeerEncrypted: s.PeerEncrypted}
}

// TestGossipKeyMismatchInDatagrams verifies datagrams to a member that restarted with another key or
// without one.
func TestGossipKeyMismatchInDatagrams(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name          string
		before, after func(*Options)
		change        []error
	}{
		// A member with encryption sends to one without, and the reverse. For a node with a key, an
		// unencrypted ping looks like a ping with another key.
		{"restarted without key", keys(keyOne), keys(), []error{ErrPeerEncrypted}},
		{"restarted with other key", keys(keyOne), keys(keyTwo), []error{ErrKeyDiffers}},
		{"restarted with key", keys(), keys(keyOne), []error{ErrPeerUnencrypted, ErrKeyDiffers}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			a := start(t, "a", test.before)
			b := start(t, "b", test.before, joining(a))
			poll.Within(t, 5*time.Second, "both see each other", func() bool { return a.sees(b) && b.sees(a) })
			b.kill(t)
			addr := b.GossipAddr()
			b = start(t, "b", test.after, func(o *Options) { o.BindAddr = addr })
			poll.Within(t, 5*time.Second, "b receives gossip of a", func() bool {
				counts := keyCounts(b.Stats())
				for _, want := range test.change {
					if counts[want] > 0 {
						return b.logs.count("level=ERROR", "gossip", "remote=127.0.0.1", "hint=") > 0
					}
				}
				return false
			})
			poll.Within(t, 10*time.Second, "a detects b as dead", func() bool { return a.sees() })
		})
	}
}

func TestOverlappingGossipKeys(t *testing.T) {
	t.Parallel()
	a := start(t, "a", keys(keyOne, keyTwo))
	b := start(t, "b", keys(keyTwo, keyOne), joining(a))
	poll.Within(t, 5*time.Second, "both see each other", func() bool { return a.sees(b) && b.sees(a) })
	if a.Stats().KeyDiffers+b.Stats().KeyDiffers != 0 {
		t.Error("overlapping keys: got a key mismatch, want none")
	}
}

// TestKeysRotateWhileRunning verifies that keys can be changed node by node while all nodes stay
// members.
func TestKeysRotateWhileRunning(t *testing.T) {
	t.Parallel()
	a := start(t, "a", keys(keyOne))
	b := start(t, "b", keys(keyOne), joining(a))
	c := start(t, "c", keys(keyOne), joining(a))
	nodes := []*node{a, b, c}
	see := func() bool { return a.sees(b, c) && b.sees(a, c) && c.sees(a, b) }
	poll.Within(t, 10*time.Second, "all see each other", see)
	for _, step := range [][]string{{keyOne, keyTwo}, {keyTwo, keyOne}, {keyTwo}} {
		for _, n := range nodes {
			var list [][]byte
			for _, key := range step {
				list = append(list, []byte(key))
			}
			if err := n.SetGossipKeys(list); err != nil {
				t.Fatal(err)
			}
			if got := n.keyring.GetKeys(); len(got) != len(step) || string(got[0]) != step[0] {
				t.Fatalf("keyring: got %q, want %q", got, step)
			}
			// Some rounds of gossip with different keyrings.
			poll.Stays(t, 200*time.Millisecond, fmt.Sprintf("step %q: all see each other", step), see)
		}
	}
	for _, n := range nodes {
		if s := n.Stats(); s.KeyDiffers != 0 || s.Gone != 0 {
			t.Errorf("stats: got %+v, want 0 for KeyDiffers and Gone", s)
		}
	}
	// The former key is now unknown.
	d := start(t, "d", keys(keyOne), joining(a))
	poll.Within(t, 5*time.Second, "the former key is refused", func() bool { return d.JoinError() != nil })
	if len(d.Members()) != 0 {
		t.Error("node with the former key: got a member, want none")
	}
	if err := a.SetGossipKeys([][]byte{[]byte("short")}); err == nil || string(a.keyring.GetPrimaryKey()) != keyTwo {
		t.Errorf("key of 5 bytes: got %v, want an error", err)
	}
	if err := a.SetGossipKeys(nil); err == nil {
		t.Error("SetGossipKeys without keys: got nil, want an error")
	}
}
