package config

import (
	"errors"
	"fmt"
)

// The values of an entry of the setting clears: what happens if a process deletes nearly all entries of a map.
const (
	ClearsHold      = "hold"      // the deletes do not replicate, and syncd restores the entries
	ClearsReplicate = "replicate" // the deletes replicate like others
)

// HoldsClears reports whether a clear of a map is held. The last entry of the map in the setting decides. Without one, a
// clear is held, except in maps with deletes: any and in drained maps.
func (c *Config) HoldsClears(name string) bool {
	switch lastChoice(c.Clears, name, mapChoices["clears"]...) {
	case ClearsHold:
		return true
	case ClearsReplicate:
		return false
	}
	return !c.DeletesAny(name) && !c.DrainSums(name)
}

func (c *Config) validateClears() error {
	var errs []error
	known := c.mapNames()
	for _, s := range c.Clears {
		switch name, how, ok := parseChoice(s, mapChoices["clears"]...); {
		case !ok:
			errs = append(errs, fmt.Errorf("clears %q: write MAP=%s or MAP=%s", s, ClearsHold, ClearsReplicate))
		case !known[name]:
			errs = append(errs, fmt.Errorf("clears %q: no map is called %s", s, name))
		case how == ClearsHold && c.DrainSums(name):
			errs = append(errs, fmt.Errorf("clears %q: the collector of a map with drain-sums empties it: remove one of the two settings", s))
		}
	}
	return errors.Join(errs...)
}
