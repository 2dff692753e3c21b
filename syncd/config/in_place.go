package config

import (
	"errors"
	"fmt"
	"slices"
)

// The values of an entry of the setting in-place: how changes of a map in place are found.
const (
	InPlaceHook = "hook" // by the hook on lookups, and by scans what the hook misses
	InPlaceScan = "scan" // by scans; the default
)

// HooksInPlace reports whether the hook on lookups finds the changes in place of a map. The last entry of the map
// in the setting decides.
func (c *Config) HooksInPlace(name string) bool {
	return lastChoice(c.InPlace, name, mapChoices["in-place"]...) == InPlaceHook
}

// HooksAnyInPlace reports whether HooksInPlace is true for a configured map.
func (c *Config) HooksAnyInPlace() bool {
	return slices.ContainsFunc(c.Maps, func(s string) bool {
		m, err := ParseMap(s)
		return err == nil && c.HooksInPlace(m.Name)
	})
}

func (c *Config) validateInPlace() error {
	var errs []error
	known := c.mapNames()
	for _, s := range c.InPlace {
		switch name, how, ok := parseChoice(s, mapChoices["in-place"]...); {
		case !ok:
			errs = append(errs, fmt.Errorf("in-place %q: write MAP=%s or MAP=%s", s, InPlaceHook, InPlaceScan))
		case !known[name]:
			errs = append(errs, fmt.Errorf("in-place %q: no map is called %s", s, name))
		case how == InPlaceHook && c.Attach != "auto" && c.Attach != "fexit":
			errs = append(errs, fmt.Errorf("in-place %q needs attach auto or fexit, not %s", s, c.Attach))
		}
	}
	return errors.Join(errs...)
}
