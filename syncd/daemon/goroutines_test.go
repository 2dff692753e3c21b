package daemon_test

import (
	"net/http"
	"runtime"
	"strings"
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
	buf := make([]byte, 8<<20)
	for stack := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		ours := strings.Contains(stack, "mapsync/") && !strings.Contains(stack, "mapsync/syncd/daemon_test.")
		waits := strings.Contains(stack, "testing.(*T).Parallel")                // a test
		if ours && !waits && !strings.Contains(stack, "hashicorp/memberlist.") { // peers.TestNoGoroutineOutlivesClose bounds these
			t.Errorf("outlives the daemon:\n%s", stack)
		}
	}
	http.DefaultClient.CloseIdleConnections()
	if err := goleak.Find(current); err != nil { // waits for a moment
		t.Error(err)
	}
}
