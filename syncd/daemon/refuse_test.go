package daemon_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mapsync/syncd/capture"
	"mapsync/syncd/config"
	"mapsync/syncd/daemon"
)

func (l *logBuffer) count(s string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), s)
}

// The settings refuse what the hooks cannot follow.
func TestLimitsAgree(t *testing.T) {
	if config.MaxMaps != capture.MaxMaps {
		t.Errorf("the settings allow %d maps, the hooks %d", config.MaxMaps, capture.MaxMaps)
	}
}

// One kernel map under two names: the first name is served whichever was attached first,
// the other is refused, is logged once, and takes nothing away from the first.
func TestDuplicateMapIsRefused(t *testing.T) {
	n1, n2, m1, m2 := twoNodes(t, 1000)
	alias := filepath.Join(filepath.Dir(n1.pin), "alias")
	n1.config.Maps = []string{"ct=" + alias, "dup=" + n1.pin}
	n1.config.ScanInterval, n2.config.ScanInterval = time.Hour, time.Hour // hooks alone
	n1.start()
	n2.start()
	eventually(t, "the second name is served alone", func() bool { return n1.status().Maps[1].State == daemon.MapReplicating })
	again, err := m1.Clone()
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if err := again.Pin(alias); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the first name is served", func() bool {
		maps := n1.status().Maps
		return maps[0].State == daemon.MapReplicating && maps[1].State == daemon.MapRefused
	})
	// The second one is retried meanwhile.
	for round := range uint64(4) {
		n1.write(m1, round*10, round*10+10, 7)
		eventually(t, "a change reaches the peer", func() bool { return holds(t, m2, int(round*10+10), 7) })
		time.Sleep(700 * time.Millisecond)
	}
	if s := n1.status().Maps[1]; s.State != daemon.MapRefused || !strings.Contains(s.Error, "map ct stands for it") {
		t.Errorf("%+v", s)
	}
	if n := n1.log.count("map ct stands for it"); n != 1 {
		t.Errorf("the refusal is logged %d times", n)
	}
	// Without the first name's pin the second takes over.
	if err := os.Remove(alias); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the second name is served again", func() bool { return n1.status().Maps[1].State == daemon.MapReplicating })
}

// A map that no path supports is refused once, and another one in its place is served.
func TestUnsupportedMapIsRefusedOnce(t *testing.T) {
	pin := filepath.Join(pinDir(t), "ct")
	n := newNode(t, 1, pin)
	n.config.Join = nil
	pinned(t, pin, 8, 8192, 10)
	n.start()
	eventually(t, "the map is refused", func() bool { return n.status().Maps[0].State == daemon.MapRefused })
	time.Sleep(2500 * time.Millisecond) // a retry would come after 1 s
	if s := n.status().Maps[0]; s.State != daemon.MapRefused || !strings.Contains(s.Error, "8192 bytes") {
		t.Errorf("%+v", s)
	}
	if c := n.log.count("the map cannot be replicated"); c != 1 {
		t.Errorf("logged %d times", c)
	}
	pinned(t, pin, 8, 8, 10)
	eventually(t, "its successor is served", func() bool { s := n.status().Maps[0]; return s.State == daemon.MapReplicating && s.Error == "" })
}

// A pin that another user could have placed is refused until the settings name the user.
func TestPinsOfOthersAreRefused(t *testing.T) {
	dir := pinDir(t)
	real, link, theirs := filepath.Join(dir, "real"), filepath.Join(dir, "link"), filepath.Join(dir, "theirs")
	pinned(t, real, 8, 8, 10)
	if err := os.Symlink(real, link); err != nil {
		t.Fatal(err)
	}
	pinned(t, theirs, 8, 8, 10)
	if err := os.Chown(theirs, 4242, 0); err != nil {
		t.Fatal(err)
	}
	n := newNode(t, 1, "link="+link, "theirs="+theirs)
	n.config.Join = nil
	n.start()
	eventually(t, "both are refused", func() bool {
		maps := n.status().Maps
		return strings.Contains(maps[0].Error, "symbolic link") && strings.Contains(maps[1].Error, "user 4242")
	})
	n.stop()
	n.config.PinOwners = []string{"4242"}
	n.start()
	eventually(t, "the named user's pin is served", func() bool { return n.status().Maps[1].State == daemon.MapReplicating })
	if s := n.status().Maps[0]; s.State != daemon.MapRefused {
		t.Errorf("the link: %+v", s)
	}
	n.config.PinOwners = []string{"no such user"}
	if _, err := daemon.New(daemon.Options{Config: n.config, Logger: slog.New(slog.DiscardHandler)}); err == nil || !strings.Contains(err.Error(), "pin-owner") {
		t.Errorf("an unknown pin owner: %v", err)
	}
}

// Trouble with the state directory is shown, and does not stop the start.
func TestStateTroubleIsShown(t *testing.T) {
	pin := filepath.Join(pinDir(t), "ct")
	pinned(t, pin, 8, 8, 10)
	n := newNode(t, 1, pin)
	n.config.Join = nil
	n.config.StateDir = filepath.Join(n.dir, "file")
	if err := os.WriteFile(n.config.StateDir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	n.start()
	eventually(t, "ready", func() bool { return n.status().Ready })
	for _, want := range []string{"mapsync_state_saved 0", `mapsync_state_errors_total{operation="write"} `} {
		if !strings.Contains(n.metrics(), want) {
			t.Errorf("no %s in the metrics", want)
		}
	}
}
