package config

import (
	"strings"
	"testing"
	"time"
)

func TestDrainSums(t *testing.T) {
	for _, tt := range []struct {
		change  func(c *Config)
		drained bool   // the map flows.v1
		problem string // of the settings; empty: none
	}{
		{func(*Config) {}, false, ""},
		{func(c *Config) { c.DrainSumsMaps = []string{"flows.v1"} }, true, ""},
		{func(c *Config) { c.DrainSumsMaps = []string{"other"} }, false, "no map is called other"},
		{func(c *Config) { c.DrainSumsMaps, c.Attach = []string{"flows.v1"}, "none" }, true, "needs hooks"},
		{func(c *Config) { c.DrainSumsMaps, c.Deletes = []string{"flows.v1"}, []string{"flows.v1=any"} }, true, "deletes: any is not possible"},
		{func(c *Config) { c.DrainSumsTTL = 9 * time.Second }, false, "drain-sums-ttl 9s is below 10s"},
		{func(c *Config) { c.DrainSumsMaxEntries = -1 }, false, "is negative"},
		{func(c *Config) { c.PinDir = "mapsync" }, false, "not an absolute path"},
		{func(c *Config) { c.PinDir = "" }, false, ""},
	} {
		c := Default()
		c.Maps = []string{"ct", "flows.v1=pin:/sys/fs/bpf/flows"}
		tt.change(&c)
		if got := c.DrainSums("flows.v1"); got != tt.drained || c.DrainSums("ct") {
			t.Errorf("drain-sums %v: got %t for flows.v1, %t for ct, want %t, false", c.DrainSumsMaps, got, c.DrainSums("ct"), tt.drained)
		}
		err := c.Validate()
		if (err == nil) != (tt.problem == "") || err != nil && !strings.Contains(err.Error(), tt.problem) {
			t.Errorf("drain-sums %v: got error %v, want %q", c.DrainSumsMaps, err, tt.problem)
		}
	}
}

// TestDrainSumsFolder: a BPF filesystem accepts no dot, and no two maps share a folder.
func TestDrainSumsFolder(t *testing.T) {
	c := Default()
	if got, want := c.DrainSumsFolder("flows.v1"), "/sys/fs/bpf/mapsync/drain-sums/flows%v1"; got != want {
		t.Errorf("folder: got %s, want %s", got, want)
	}
	c.PinDir = ""
	if got := c.DrainSumsFolder("flows"); got != "" {
		t.Errorf("folder without pin-dir: got %s, want none", got)
	}
}

func TestDrainSumsRoom(t *testing.T) {
	for _, tt := range []struct {
		setting int
		factor  float64
		room    int
	}{
		{0, 2, 600},
		{1000, 2, 3000},
		{1000, 1.5, 2500},
	} {
		c := Default()
		c.DrainSumsMaxEntries, c.RecordsFactor = tt.setting, tt.factor
		if room := c.DrainSumsRoom(100); room != tt.room {
			t.Errorf("room with maximum %d and factor %g: got %d, want %d", tt.setting, tt.factor, room, tt.room)
		}
	}
}
