package daemon

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// The clock that differs from the majority is named, on each node alike. Without a majority none is, unless
// synchronised clocks agree.
func TestWrongClockIsNamed(t *testing.T) {
	const limit = time.Minute
	for _, c := range []struct {
		name  string
		ahead []time.Duration // by node: a, b, ...
		unsynchronised,
		wrong string
		apart string // the nodes of an undecided problem
	}{
		{"all agree", []time.Duration{0, time.Second, -time.Second}, "", "", ""},
		{"a node alone", []time.Duration{0}, "a", "", ""},
		{"two nodes", []time.Duration{0, time.Hour}, "", "", "a,b"},
		{"two nodes, both unsynchronised", []time.Duration{0, time.Hour}, "ab", "", "a,b"},
		{"two nodes, one unsynchronised", []time.Duration{0, time.Hour}, "a", "a", ""},
		{"three nodes, one behind", []time.Duration{0, -time.Hour, time.Second}, "", "b", ""},
		{"three nodes, the synchronised one differs", []time.Duration{0, time.Hour, 0}, "ac", "b", ""},
		{"three nodes, all differ", []time.Duration{0, time.Hour, 2 * time.Hour}, "", "", "a,b,c"},
		{"three nodes, all differ, one synchronised", []time.Duration{0, time.Hour, 2 * time.Hour}, "ac", "ac", ""},
		{"three nodes in a chain", []time.Duration{0, 50 * time.Second, 100 * time.Second}, "", "", "a,b,c"},
		{"four nodes, two and two", []time.Duration{0, 0, time.Hour, time.Hour}, "", "", "a,b,c,d"},
		{"four nodes, one differs", []time.Duration{0, 0, time.Hour, 0}, "", "c", ""},
		{"five nodes, two differ", []time.Duration{0, time.Hour, 0, 2 * time.Hour, 0}, "", "bd", ""},
	} {
		// Each node measures the others by its own clock.
		for from := range c.ahead {
			var clocks []nodeClock
			for i, ahead := range c.ahead {
				name := string(rune('a' + i))
				clocks = append(clocks, nodeClock{node: name, ahead: ahead - c.ahead[from], unsynchronised: strings.Contains(c.unsynchronised, name)})
			}
			var wrong []string
			apart := ""
			for _, p := range findWrongClocks(clocks, limit) {
				if p.wrong {
					wrong = append(wrong, p.nodes())
				} else {
					apart = p.nodes()
				}
			}
			slices.Sort(wrong)
			if got := strings.Join(wrong, ""); got != c.wrong || apart != c.apart {
				t.Errorf("%s, from %c: got wrong clocks %q and undecided ones %q, want %q and %q", c.name, 'a'+from, got, apart, c.wrong, c.apart)
			}
		}
	}
}
