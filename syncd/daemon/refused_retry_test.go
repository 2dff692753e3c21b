package daemon_test

import (
	"path/filepath"
	"testing"
	"time"

	"mapsync/internal/poll"
	"mapsync/syncd/daemon"
)

// A map was refused for some time, so that it is rarely tried again. Another map in its place is
// attached at once.
func TestSuccessorOfRefusedMapIsAttachedAtOnce(t *testing.T) {
	path := filepath.Join(pinDir(t), "ct")
	typed(t, path, keyV1, valueV1, 100)
	n := newNode(t, 1, "ct="+path)
	n.config.Join = nil
	n.start()
	poll.Eventually(t, "the node is ready", func() bool { return n.status().Ready })
	refused := time.Now() // not later than the first attempt
	typed(t, path, keyV3, valueV1, 100)
	poll.Eventually(t, "the map is refused", func() bool { return n.status().Maps[0].State == daemon.MapRefused })
	const next = 15 * time.Second       // from the first attempt to the fifth one
	time.Sleep(7500 * time.Millisecond) // attempts at 0, 1, 3 and 7 s
	typed(t, path, keyV1, valueV1, 100)
	poll.Eventually(t, "the node is ready again", func() bool { return n.status().Ready })
	if took := time.Since(refused); took >= next {
		t.Errorf("time from the refused map until the new map is ready: got %s, want less than %s, the time of the next attempt", took, next)
	}
}
