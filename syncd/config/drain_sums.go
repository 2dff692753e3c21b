package config

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// Defaults of the settings of drained maps.
const (
	DefaultDrainSumsTTL = 5 * time.Minute
	// DefaultPinDir is the folder of the pins of syncd.
	DefaultPinDir = "/sys/fs/bpf/mapsync"
	// minDrainSumsTTL is the minimum of drain-sums-ttl.
	minDrainSumsTTL = 10 * time.Second
	// drainSumsFactor is the default of drain-sums-max-entries as a multiple of the map's maximum entries.
	drainSumsFactor = 2
)

// bindDrainSums declares the settings of drained maps.
func (c *Config) bindDrainSums(fs *pflag.FlagSet) {
	fs.StringArrayVar(&c.DrainSumsMaps, "drain-sums", c.DrainSumsMaps, "`MAP` that a collector drains by lookup-and-delete: replicate sums of the drained entries, by node (repeatable)")
	fs.DurationVar(&c.DrainSumsTTL, "drain-sums-ttl", c.DrainSumsTTL, "lifetime of a sum that does not change")
	fs.IntVar(&c.DrainSumsMaxEntries, "drain-sums-max-entries", c.DrainSumsMaxEntries, "maximum number of this node's sums for each drained map (default: twice the map's maximum entries)")
	fs.StringVar(&c.PinDir, "pin-dir", c.PinDir, "directory in a BPF filesystem for the sums of drained maps, which then survive a restart of syncd (empty: they do not)")
}

// DrainSums reports whether what a collector drains from a map is added to sums.
func (c *Config) DrainSums(name string) bool { return slices.Contains(c.DrainSumsMaps, name) }

// DrainSumsRoom returns the size of the map of sums for a map with this maximum number of entries: room for the sums of this
// node, and max-records-factor times as many of peers.
func (c *Config) DrainSumsRoom(maxEntries int) int {
	own := c.DrainSumsMaxEntries
	if own == 0 {
		own = drainSumsFactor * maxEntries
	}
	return own + int(c.RecordsFactor*float64(own))
}

// DrainSumsFolder returns the folder of the pins of a drained map, empty without pin-dir. A BPF filesystem accepts no dot
// in a name.
func (c *Config) DrainSumsFolder(name string) string {
	if c.PinDir == "" {
		return ""
	}
	return filepath.Join(c.PinDir, "drain-sums", strings.ReplaceAll(name, ".", "%"))
}

func (c *Config) validateDrainSums() error {
	var errs []error
	known := c.mapNames()
	for _, name := range c.DrainSumsMaps {
		switch {
		case !known[name]:
			errs = append(errs, fmt.Errorf("drain-sums %q: no map is called %s", name, name))
		case c.Attach == "none":
			errs = append(errs, fmt.Errorf("drain-sums %q needs hooks: choose another attach than none", name))
		case c.DeletesAny(name):
			errs = append(errs, fmt.Errorf("drain-sums %q: deletes: any is not possible, because each sum belongs to one node: remove it from deletes", name))
		}
	}
	if c.DrainSumsTTL < minDrainSumsTTL {
		errs = append(errs, fmt.Errorf("drain-sums-ttl %s is below %s", c.DrainSumsTTL, minDrainSumsTTL))
	}
	if c.DrainSumsMaxEntries < 0 {
		errs = append(errs, fmt.Errorf("drain-sums-max-entries %d is negative", c.DrainSumsMaxEntries))
	}
	if c.PinDir != "" && !filepath.IsAbs(c.PinDir) {
		errs = append(errs, fmt.Errorf("pin-dir %q is not an absolute path", c.PinDir))
	}
	return errors.Join(errs...)
}
