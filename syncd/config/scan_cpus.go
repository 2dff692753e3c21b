package config

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// maxCPU is the highest number that a [unix.CPUSet] can contain.
const maxCPU = 1023

// ScanCPUSet returns the CPUs of ScanCPUs, nil for any CPU.
func (c *Config) ScanCPUSet() (*unix.CPUSet, error) {
	if c.ScanCPUs == "" {
		return nil, nil //nolint:nilnil // any CPU
	}
	return parseCPUs(c.ScanCPUs)
}

// parseCPUs returns the CPUs of a list like "2-3,8", as in /sys/devices/system/cpu/online.
func parseCPUs(list string) (*unix.CPUSet, error) {
	set := new(unix.CPUSet)
	for part := range strings.SplitSeq(list, ",") {
		from, to, isRange := strings.Cut(strings.TrimSpace(part), "-")
		if !isRange {
			to = from
		}
		first, err := strconv.ParseUint(from, 10, 16)
		last, errLast := strconv.ParseUint(to, 10, 16)
		if errors.Join(err, errLast) != nil || first > last || last > maxCPU {
			return nil, fmt.Errorf("%q is not a list like 2-3,8 of numbers up to %d", list, maxCPU)
		}
		for cpu := first; cpu <= last; cpu++ {
			set.Set(int(cpu))
		}
	}
	return set, nil
}
