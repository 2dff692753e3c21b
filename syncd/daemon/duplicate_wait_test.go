package daemon_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"mapsync/internal/poll"
	"mapsync/syncd/daemon"
)

// The first of two names waits for the kernel map of the second one, and is then refused for
// another reason. The second name is served again.
func TestRefusedNameDoesNotWait(t *testing.T) {
	for name, c := range map[string]struct {
		replace func(t *testing.T, alias string)
		want    string
	}{
		"the pin is replaced by a symbolic link": {func(t *testing.T, alias string) {
			if err := os.Symlink("elsewhere", alias); err != nil {
				t.Fatal(err)
			}
		}, "symbolic link"},
		"the pin refers to a map of another type": {func(t *testing.T, alias string) {
			pinnedAs(t, alias, &ebpf.MapSpec{Name: "queue", Type: ebpf.Queue, ValueSize: 8, MaxEntries: 4})
		}, "Queue"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := pinDir(t)
			pin, alias := filepath.Join(dir, "one"), filepath.Join(dir, "alias")
			m := pinned(t, pin, 8, 8, 1000)
			n := newNode(t, 1, "ct="+alias, "dup="+pin)
			n.config.Join = nil
			n.start()
			first, second := func() daemon.MapStatus { return n.status().Maps[0] }, func() daemon.MapStatus { return n.status().Maps[1] }
			poll.Eventually(t, "the second name is served", func() bool { return second().State == daemon.MapReplicating })
			again, err := m.Clone()
			if err != nil {
				t.Fatal(err)
			}
			defer again.Close()
			if err := again.Pin(alias); err != nil {
				t.Fatal(err)
			}
			poll.Eventually(t, "the first name waits", func() bool { return strings.Contains(first().Error, "map dup uses it") })
			if err := os.Remove(alias); err != nil {
				t.Fatal(err)
			}
			c.replace(t, alias)
			poll.Eventually(t, "the first name is refused", func() bool { return strings.Contains(first().Error, c.want) })
			poll.Eventually(t, "the second name is served again", func() bool { return second().State == daemon.MapReplicating })
		})
	}
}
