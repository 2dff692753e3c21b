package daemon_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mapsync/internal/poll"
	"mapsync/syncd/capture"
	"mapsync/syncd/config"
	"mapsync/syncd/daemon"
)

func (l *logBuffer) count(s string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), s)
}

// The limit of maps in the settings equals the limit of the hooks.
func TestMaxMapsMatchesCapture(t *testing.T) {
	if config.MaxMaps != capture.MaxMaps {
		t.Errorf("maximum number of maps: got %d in the settings, want %d as in the hooks", config.MaxMaps, capture.MaxMaps)
	}
}

// One kernel map has two names. The first name is served in any order of attachment. The second
// name is refused, and its refusal is logged once and does not affect the first name.
func TestDuplicateMapIsRefused(t *testing.T) {
	n1, n2, m1, m2 := twoNodes(t, 1000)
	alias := filepath.Join(filepath.Dir(n1.pin), "alias")
	n1.config.Maps = []string{"ct=" + alias, "dup=" + n1.pin}
	n1.config.ScanInterval, n2.config.ScanInterval = time.Hour, time.Hour // only hooks
	n1.start()
	n2.start()
	poll.Eventually(t, "the second name is served while the first is absent", func() bool { return n1.status().Maps[1].State == daemon.MapReplicating })
	again, err := m1.Clone()
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if err := again.Pin(alias); err != nil {
		t.Fatal(err)
	}
	poll.Eventually(t, "the first name is served", func() bool {
		maps := n1.status().Maps
		return maps[0].State == daemon.MapReplicating && maps[1].State == daemon.MapRefused
	})
	// Meanwhile the second name is retried.
	for round := range uint64(4) {
		n1.write(m1, round*10, round*10+10, 7)
		poll.Eventually(t, "a change reaches the peer", func() bool { return holds(t, m2, int(round*10+10), 7) })
		poll.Stays(t, 700*time.Millisecond, "the refusal is logged once", func() bool { return n1.log.count(`msg="cannot replicate map" map=dup`) == 1 })
	}
	if s := n1.status().Maps[1]; s.State != daemon.MapRefused || !strings.Contains(s.Error, "map ct uses it") {
		t.Errorf("second name: got %+v, want it refused", s)
	}
	// Without the pin of the first name, the second name is served.
	if err := os.Remove(alias); err != nil {
		t.Fatal(err)
	}
	poll.Eventually(t, "the second name is served again", func() bool { return n1.status().Maps[1].State == daemon.MapReplicating })
}

// A map that syncd cannot replicate is refused once. Another map in its place is served.
func TestUnsupportedMapIsRefusedOnce(t *testing.T) {
	pin := filepath.Join(pinDir(t), "ct")
	n := newNode(t, 1, pin)
	n.config.Join = nil
	pinned(t, pin, 8, 40_000, 10)
	n.start()
	poll.Eventually(t, "the map is refused", func() bool { return n.status().Maps[0].State == daemon.MapRefused })
	// A retry would come after 1 s.
	poll.Stays(t, 2500*time.Millisecond, "the map stays refused and is logged once", func() bool {
		s := n.status().Maps[0]
		return s.State == daemon.MapRefused && strings.Contains(s.Error, "40000 bytes") && n.log.count("cannot replicate map") == 1
	}, func() any {
		return fmt.Sprintf("%+v, %d log lines", n.status().Maps[0], n.log.count("cannot replicate map"))
	})
	pinned(t, pin, 8, 8, 10)
	poll.Eventually(t, "the next map is served", func() bool { s := n.status().Maps[0]; return s.State == daemon.MapReplicating && s.Error == "" })
}

// A pin of another user is refused until the settings name the user.
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
	poll.Eventually(t, "both maps are refused", func() bool {
		maps := n.status().Maps
		return strings.Contains(maps[0].Error, "symbolic link") && strings.Contains(maps[1].Error, "user 4242")
	})
	n.stop()
	n.config.PinOwners = []string{"4242"}
	n.start()
	poll.Eventually(t, "the named user's pin is served", func() bool { return n.status().Maps[1].State == daemon.MapReplicating })
	if s := n.status().Maps[0]; s.State != daemon.MapRefused {
		t.Errorf("symbolic link: got %+v, want it refused", s)
	}
	n.config.PinOwners = []string{"no such user"}
	if _, err := daemon.New(daemon.Options{Config: n.config, Logger: slog.New(slog.DiscardHandler)}); err == nil || !strings.Contains(err.Error(), "pin-owner") {
		t.Errorf("unknown pin owner: got error %v, want \"pin-owner\"", err)
	}
}

// Errors of the state directory are reported, and do not stop the start.
func TestStateErrorsAreReported(t *testing.T) {
	pin := filepath.Join(pinDir(t), "ct")
	pinned(t, pin, 8, 8, 10)
	n := newNode(t, 1, pin)
	n.config.Join = nil
	n.config.StateDir = filepath.Join(n.dir, "file")
	if err := os.WriteFile(n.config.StateDir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	n.start()
	poll.Eventually(t, "the node is ready", func() bool { return n.status().Ready })
	for _, want := range []string{"mapsync_state_saved 0", `mapsync_state_errors_total{operation="write"} `} {
		if !strings.Contains(n.metrics(), want) {
			t.Errorf("metrics: want %s", want)
		}
	}
}

// TestDamagedStateIsReported: a node whose state file was damaged starts without it, reports that, and replaces it.
func TestDamagedStateIsReported(t *testing.T) {
	pin := filepath.Join(pinDir(t), "ct")
	pinned(t, pin, 8, 8, 10)
	n := newNode(t, 1, "ct="+pin)
	n.config.Join = nil
	n.start()
	poll.Eventually(t, "the node is ready", func() bool { return n.status().Ready })
	n.stop()
	path, _ := n.readState()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, path, bytes.Replace(data, []byte(`"incarnation":1`), []byte(`"incarnation":2`), 1))
	for _, failures := range []int{1, 0} {
		n.start()
		poll.Eventually(t, "the node is ready", func() bool { return n.status().Ready })
		if want := fmt.Sprintf("mapsync_state_errors_total{operation=\"read\"} %d\n", failures); !strings.Contains(n.metrics(), want) {
			t.Errorf("metrics: want %s", want)
		}
		n.stop()
	}
	for _, want := range []string{"level=ERROR msg=\"failed to read the state, starting without it\"", "run syncd drain again"} {
		if n.log.count(want) != 1 {
			t.Errorf("log: got %d lines with %q, want 1", n.log.count(want), want)
		}
	}
}
