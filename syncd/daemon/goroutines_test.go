package daemon_test

import (
	"net/http"
	"testing"

	"go.uber.org/goleak"
)

// TestNoGoroutineOutlivesTheDaemon starts and stops two nodes that replicate.
func TestNoGoroutineOutlivesTheDaemon(t *testing.T) {
	current := goleak.IgnoreCurrent()
	n1, n2, m1, m2 := twoNodes(t, 1000)
	startPair(t, n1, n2)
	n1.write(m1, 0, 100, 7)
	eventually(t, "the peer's map holds all", func() bool { return holds(t, m2, 100, 7) })
	if code, _ := n1.readyz(); code != http.StatusOK {
		t.Errorf("status %d", code)
	}
	n1.stop()
	n2.stop()
	http.DefaultClient.CloseIdleConnections()
	if err := goleak.Find(current); err != nil { // waits for a moment
		t.Error(err)
	}
}
