package config

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

const (
	// DefaultMaxConnections is the default of max-connections: the maximum number of
	// authenticated connections to the stream listener.
	DefaultMaxConnections = 256
	// minMemoryLimit is the minimum of memory-limit, in bytes. A daemon with one small map uses
	// about half of it.
	minMemoryLimit = 32 << 20
)

// MaxMaps is the maximum number of maps. It equals capture.MaxMaps, the limit of the hooks.
const MaxMaps = 1024

// bindLimits declares the settings that limit the resources of the daemon.
func (c *Config) bindLimits(fs *pflag.FlagSet) {
	fs.IntVar(&c.MaxConnections, "max-connections", c.MaxConnections, "authenticated connections to accept on grpc-listen; a cluster of N nodes needs N and two for each observer")
	fs.StringVar(&c.MemoryLimit, "memory-limit", c.MemoryLimit, "memory that the Go runtime aims to stay below, `SIZE` like 512MiB; off: none (default: 90 % of the cgroup's limit)")
}

// ParseSize parses a number of bytes, with or without a unit: B, KiB, MiB, GiB or TiB.
func ParseSize(s string) (int64, error) {
	number, shift := strings.TrimSuffix(s, "B"), 0
	if i := strings.IndexByte("KMGT", unitOf(number)); i >= 0 {
		number, shift = number[:len(number)-2], 10*(i+1)
	}
	n, err := strconv.ParseInt(strings.TrimSpace(number), 10, 64)
	if err != nil || n < 0 || n > math.MaxInt64>>shift {
		return 0, fmt.Errorf("size %q is not usable: write a number and B, KiB, MiB, GiB or TiB", s)
	}
	return n << shift, nil
}

// unitOf returns the letter before a final i, or a space.
func unitOf(s string) byte {
	if len(s) < 2 || s[len(s)-1] != 'i' {
		return ' '
	}
	return s[len(s)-2]
}

// MemoryLimitBytes returns memory-limit in bytes. It returns 0 if the setting is empty, and
// math.MaxInt64 (no limit) if it is off.
func (c *Config) MemoryLimitBytes() (int64, error) {
	switch c.MemoryLimit {
	case "":
		return 0, nil
	case "off":
		return math.MaxInt64, nil
	}
	n, err := ParseSize(c.MemoryLimit)
	if err == nil && n < minMemoryLimit {
		err = fmt.Errorf("size %q is below %d MiB, which the daemon needs", c.MemoryLimit, minMemoryLimit>>20)
	}
	return n, err
}

func (c *Config) validateLimits() error {
	var errs []error
	if len(c.Maps) > MaxMaps {
		errs = append(errs, fmt.Errorf("%d maps are configured: syncd replicates at most %d", len(c.Maps), MaxMaps))
	}
	if c.MaxConnections < 1 {
		errs = append(errs, fmt.Errorf("max-connections %d is not positive", c.MaxConnections))
	}
	if _, err := c.MemoryLimitBytes(); err != nil {
		errs = append(errs, fmt.Errorf("memory-limit: %w", err))
	}
	if usable := c.RecordsFactor >= 1 && c.RecordsFactor <= 1000; !usable {
		errs = append(errs, fmt.Errorf("max-records-factor %g is not between 1 and 1000", c.RecordsFactor))
	}
	if c.MaxTombstones < 0 {
		errs = append(errs, fmt.Errorf("max-tombstones %d is negative", c.MaxTombstones))
	}
	if c.MaxEvicted < 0 {
		errs = append(errs, fmt.Errorf("max-evicted %d is negative", c.MaxEvicted))
	}
	return errors.Join(errs...)
}
