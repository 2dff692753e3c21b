package daemon

import (
	"slices"
	"strings"
	"testing"
	"time"

	"mapsync/syncd/config"
)

// TestInnerGroupKeys: keys come at once and go after innerGrace. A group has no more keys than there is room for.
func TestInnerGroupKeys(t *testing.T) {
	g := &innerGroup{seen: make(map[string]time.Time)}
	m := config.Map{Name: "lru", Ref: "name:lru[*]"}
	start := time.Unix(1_000_000, 0)
	for _, step := range []struct {
		after   time.Duration
		keys    []string
		room    int
		changed bool
		err     string
		want    string
	}{
		{0, []string{"0", "1"}, 10, true, "", "0 1"},
		{time.Second, []string{"0", "1"}, 10, false, "", "0 1"},
		{2 * time.Second, []string{"1"}, 10, false, "", "0 1"},
		{innerGrace, []string{"0"}, 10, false, "", "0 1"},
		{innerGrace + 3*time.Second, []string{"0"}, 10, true, "", "0"},
		{innerGrace + 4*time.Second, []string{"0", "2", "3"}, 2, true, "at most 1024 maps: lru.3 is left out", "0 2"},
		{innerGrace + 5*time.Second, []string{strings.Repeat("9", 64)}, 10, false, "too long", "0 2"},
		{3 * innerGrace, nil, 10, true, "", ""},
	} {
		changed, err := g.update(m, step.keys, start.Add(step.after), step.room)
		var keys []string
		for key := range g.seen {
			keys = append(keys, key)
		}
		slices.Sort(keys)
		if got := strings.Join(keys, " "); got != step.want || changed != step.changed {
			t.Errorf("after %v: got keys %q, changed %t, want %q, %t", step.after, got, changed, step.want, step.changed)
		}
		if (err == nil) != (step.err == "") || err != nil && !strings.Contains(err.Error(), step.err) {
			t.Errorf("after %v: got error %v, want %q", step.after, err, step.err)
		}
	}
}
