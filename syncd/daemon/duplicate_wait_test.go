package daemon_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mapsync/internal/poll"
	"mapsync/syncd/daemon"
)

// The first of two names waits for the kernel map of the second one, and is then refused for
// another reason. The second name is served again.
func TestRefusedNameDoesNotWait(t *testing.T) {
	dir := pinDir(t)
	pin, alias := filepath.Join(dir, "one"), filepath.Join(dir, "alias")
	m := pinned(t, pin, 8, 8, 1000)
	n := newNode(t, 1, "ct="+alias, "dup="+pin)
	n.config.Join = nil
	n.start()
	poll.Eventually(t, "the second name is served", func() bool { return n.status().Maps[1].State == daemon.MapReplicating })
	again, err := m.Clone()
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if err := again.Pin(alias); err != nil {
		t.Fatal(err)
	}
	poll.Eventually(t, "the first name waits", func() bool { return strings.Contains(n.status().Maps[0].Error, "map dup uses it") })
	if err := os.Remove(alias); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("elsewhere", alias); err != nil {
		t.Fatal(err)
	}
	poll.Eventually(t, "the first name is refused", func() bool { return strings.Contains(n.status().Maps[0].Error, "symbolic link") })
	poll.Eventually(t, "the second name is served again", func() bool { return n.status().Maps[1].State == daemon.MapReplicating })
}
