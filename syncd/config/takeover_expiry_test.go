package config

import (
	"strings"
	"testing"
	"time"
)

func TestTakeoverExpiry(t *testing.T) {
	for _, tt := range []struct {
		entries []string
		after   time.Duration // for the map ct
		set     bool
		problem string // of the settings; empty: none
	}{
		{nil, 0, false, ""},
		{[]string{"ct=2m"}, 2 * time.Minute, true, ""},
		{[]string{"ct=50s"}, 50 * time.Second, true, ""},
		{[]string{"ct=never"}, 0, true, ""},
		{[]string{"ct=never", "ct=1h"}, time.Hour, true, ""},
		{[]string{"ct=2m:last.used"}, 2 * time.Minute, true, ""},
		{[]string{"nat=2m"}, 0, false, ""},
		{[]string{"ct=2m:"}, 0, false, "write MAP=DURATION, MAP=DURATION:FIELD or MAP=never"},
		{[]string{"ct=never:used"}, 0, false, "write MAP=DURATION, MAP=DURATION:FIELD or MAP=never"},
		{[]string{"ct=49s"}, 49 * time.Second, true, "give at least 50s"},
		{[]string{"other=2m"}, 0, false, "no map is called other"},
		{[]string{"ct"}, 0, false, "write MAP=DURATION, MAP=DURATION:FIELD or MAP=never"},
		{[]string{"ct=0s"}, 0, false, "write MAP=DURATION, MAP=DURATION:FIELD or MAP=never"},
		{[]string{"ct=-2m"}, 0, false, "write MAP=DURATION, MAP=DURATION:FIELD or MAP=never"},
		{[]string{"=2m"}, 0, false, "write MAP=DURATION, MAP=DURATION:FIELD or MAP=never"},
	} {
		c := Default()
		c.Maps, c.TakeoverExpiries = []string{"ct", "nat=pin:/sys/fs/bpf/n"}, tt.entries
		if after, set := c.TakeoverExpiry("ct"); after != tt.after || set != tt.set {
			t.Errorf("takeover-expiry %v: got %s, set %v, want %s, %v", tt.entries, after, set, tt.after, tt.set)
		}
		err := c.Validate()
		if (err == nil) != (tt.problem == "") || err != nil && !strings.Contains(err.Error(), tt.problem) {
			t.Errorf("takeover-expiry %v: got error %v, want %q", tt.entries, err, tt.problem)
		}
	}
	c := Default()
	c.Maps, c.TakeoverExpiries, c.RefreshInterval = []string{"ct"}, []string{"ct=2m"}, 0
	if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "refresh-interval") {
		t.Errorf("takeover-expiry without refresh-interval: got error %v, want one that names refresh-interval", err)
	}
}

// TestWatchesUses: the hook on lookups is attached only for maps whose uses nothing else shows.
func TestWatchesUses(t *testing.T) {
	for _, tt := range []struct {
		entries, drained []string
		want             bool
		field            string
	}{
		{nil, nil, false, ""},
		{[]string{"ct=2m"}, nil, true, ""},
		{[]string{"ct=never"}, nil, false, ""},
		{[]string{"ct=2m:last.used"}, nil, false, "last.used"},
		{[]string{"ct=2m:last.used", "ct=2m"}, nil, true, ""},
		{[]string{"ct=2m"}, []string{"ct"}, false, ""},
		{[]string{"nat=2m"}, nil, false, ""},
	} {
		c := Default()
		c.Maps, c.TakeoverExpiries, c.DrainSumsMaps = []string{"ct"}, tt.entries, tt.drained
		if got, field := c.WatchesUses("ct"), c.TakeoverField("ct"); got != tt.want || c.WatchesAnyUses() != tt.want || field != tt.field {
			t.Errorf("%v, drained %v: watches uses %t, field %q, want %t, %q", tt.entries, tt.drained, got, field, tt.want, tt.field)
		}
	}
}
