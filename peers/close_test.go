package peers

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"mapsync/internal/poll"
)

// stacksOf returns the stacks of goroutines that contain text and do not contain not. It omits the
// goroutines of tests, and those that have ended and that the runtime has not removed yet.
func stacksOf(text, not string) (list []string) {
	buf := make([]byte, 8<<20)
	for stack := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		ended := strings.Contains(stack, "runtime.goexit1(")
		if strings.Contains(stack, text) && !strings.Contains(stack, not) && !strings.Contains(stack, "testing.tRunner") && !ended {
			list = append(list, stack)
		}
	}
	return list
}

// TestCloseEndsGoroutines verifies that no goroutine of this package runs after Close returns.
// memberlist's goroutines end within three eighths of the dead time. Its timers log and change
// nothing.
func TestCloseEndsGoroutines(t *testing.T) {
	const deadTime = time.Second
	short := func(o *Options) { o.DeadTime = deadTime }
	a := start(t, "a", short)
	join := func(o *Options) { o.DeadTime, o.Join = deadTime, []string{a.GossipAddr()} }
	b, c := start(t, "b", join), start(t, "c", join)
	poll.Within(t, 10*time.Second, "all see each other", func() bool { return a.sees(b, c) && b.sees(a, c) && c.sees(a, b) })
	c.kill(t)
	time.Sleep(deadTime / 2) // a and b probe c and suspect it, which starts timers that no method shows
	for _, n := range []*node{a, b} {
		if err := n.Close(); err != nil {
			t.Fatal(err)
		}
		if err := n.stop(); err != nil {
			t.Fatal(err)
		}
	}
	for _, stack := range stacksOf("mapsync/peers.", "hashicorp/memberlist.") {
		t.Errorf("goroutine still running after Close:\n%s", stack)
	}
	lines, members := a.logs.count("")+b.logs.count(""), len(a.Members())+len(b.Members())
	// The slack allows for a busy machine.
	const bound, slack = 3 * deadTime / 8, 5 * time.Second
	began := time.Now()
	poll.Within(t, bound+slack, "goroutines of memberlist end", func() bool { return len(stacksOf("hashicorp/memberlist.", "testing.tRunner")) == 0 })
	t.Logf("memberlist's goroutines ended after %s", time.Since(began))
	// The timers fire within this time.
	poll.Stays(t, 2*deadTime+deadTime/2-time.Since(began), "no lines are logged and no members change after Close", func() bool {
		return a.logs.count("")+b.logs.count("") == lines && len(a.Members())+len(b.Members()) == members
	}, func() any {
		return fmt.Sprintf("got %d members, want %d, log:\n%s\n%s", len(a.Members())+len(b.Members()), members, a.logs, b.logs)
	})
}
