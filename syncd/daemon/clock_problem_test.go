package daemon_test

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"mapsync/internal/poll"
	"mapsync/syncd/problem"
)

// The peers refuse a node that starts with its clock more than max-clock-ahead ahead. Status,
// readyz, log and a metric show the cause and the remedy on both sides. The other nodes continue.
func TestClockProblemsAreReported(t *testing.T) {
	n1, n2, m1, _ := twoNodes(t, 100)
	n2.wall = func() time.Time { return time.Now().Add(time.Hour) }
	n1.start()
	poll.Eventually(t, "the first node is ready", func() bool { return n1.status().Ready })
	stop := watchReady(t, n1)
	n2.start()
	for _, c := range []struct {
		n           *node
		peer, cause string
	}{
		{n1, "n2", `n1 \+0s, n2 \+(1h0m0s|59m\d+s): compare each .*, then restart syncd on n2 if that is it$`},
		{n2, "n1", `n1 -1h0m0s, n2 \+0s: compare each .*, then restart syncd on n2 if that is it$`},
	} {
		poll.Eventually(t, c.n.config.NodeName+" reports the cause", func() bool {
			_, body := c.n.readyz()
			s := c.n.status()
			ok, err := regexp.MatchString(c.cause, strings.Join(s.ClockProblems, "\n"))
			return err == nil && ok && strings.Contains(body, ", then restart syncd ") && !strings.Contains(body, "the clock of n")
		})
		c.n.shows("clock", problem.Critical, "compare each")
		poll.Eventually(t, "the cause is logged", func() bool { return c.n.log.contains(`msg="problem began" id=clock`) })
		if v := strings.TrimPrefix(c.n.sample("mapsync_clock_apart_seconds", `{node="`+c.peer+`"}`), "-"); !strings.HasPrefix(v, "3600") && !strings.HasPrefix(v, "35") {
			t.Errorf("%s: mapsync_clock_apart_seconds: got %s, want about 3600", c.n.config.NodeName, v)
		}
	}
	if n2.status().Ready || len(n1.status().Peers) != 0 {
		t.Error("node with its clock ahead: got it joined, want it refused")
	}
	lines := func() int { return n1.log.count(`msg="problem began" id=clock`) }
	poll.Stays(t, 2*time.Second, "one log line about the clock during several checks", func() bool { return lines() == 1 },
		func() any { return lines() })
	// The remedy: set the clock and restart.
	n2.stop()
	n2.wall = nil
	n2.start()
	poll.Eventually(t, "the node joins after its clock is set", func() bool { return n2.status().Ready && len(n1.status().ClockProblems) == 0 })
	n1.write(m1, 0, 10, 1)
	n1.ends("clock")
	n2.ends("clock")
	stop()
	if v := n1.sample("mapsync_clock_apart_seconds", `{node="n2"}`); v != "absent" {
		t.Errorf("mapsync_clock_apart_seconds after the remedy: got %s, want it absent", v)
	}
}
