package daemon_test

import (
	"path/filepath"
	"testing"

	"mapsync/internal/poll"
	"mapsync/syncd/daemon"
)

// Another map in the place of a refused map is attached. TestAwaitRetryEndsForAnotherMap checks that this does not depend
// on the time of the next attempt.
func TestSuccessorOfRefusedMapIsAttached(t *testing.T) {
	path := filepath.Join(pinDir(t), "ct")
	typed(t, path, keyV1, valueV1, 100)
	n := newNode(t, 1, "ct="+path)
	n.config.Join = nil
	n.start()
	poll.Eventually(t, "the node is ready", func() bool { return n.status().Ready })
	typed(t, path, keyV3, valueV1, 100)
	poll.Eventually(t, "the map is refused", func() bool { return n.status().Maps[0].State == daemon.MapRefused })
	typed(t, path, keyV1, valueV1, 100)
	poll.Eventually(t, "the node is ready again", func() bool { return n.status().Ready })
}
