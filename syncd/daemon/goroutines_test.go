package daemon_test

import (
	"net/http"
	"runtime"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"mapsync/internal/poll"
)

// Two nodes that replicate leave no goroutine behind after they have stopped.
func TestNoGoroutineOutlivesTheDaemon(t *testing.T) {
	current := goleak.IgnoreCurrent()
	n1, n2, m1, m2 := twoNodes(t, 1000)
	startPair(t, n1, n2)
	n1.write(m1, 0, 100, 7)
	poll.Eventually(t, "the peer's map holds all entries", func() bool { return holds(t, m2, 100, 7) })
	if code, _ := n1.readyz(); code != http.StatusOK {
		t.Errorf("readyz: got status %d, want 200", code)
	}
	n1.stop()
	n2.stop()
	buf := make([]byte, 8<<20)
	for stack := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		ours := strings.Contains(stack, "mapsync/") && !strings.Contains(stack, "mapsync/syncd/daemon_test.")
		// Parallel tests that have not started are not leaks.
		waits := strings.Contains(stack, "testing.(*T).Parallel")
		// peers.TestNoGoroutineOutlivesClose limits the goroutines of memberlist.
		if ours && !waits && !strings.Contains(stack, "hashicorp/memberlist.") {
			t.Errorf("goroutine after the daemon has stopped:\n%s", stack)
		}
	}
	http.DefaultClient.CloseIdleConnections()
	if err := goleak.Find(current); err != nil { // retries for a moment
		t.Error(err)
	}
}
