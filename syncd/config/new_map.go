package config

import (
	"errors"
	"fmt"
)

// The values of an entry of the setting new-map: which content of a key wins when the load balancer replaces a map.
const (
	NewMapTable = "table" // the record, if a live peer owns it; the default
	NewMapMap   = "map"   // the entry of the new map; the default with deletes: any
)

// NewMapWins reports whether the entries of a new map win over the records of live peers. The last entry of the map
// in the setting decides.
func (c *Config) NewMapWins(name string) bool {
	if choice := lastChoice(c.NewMap, name, mapChoices["new-map"]...); choice != "" {
		return choice == NewMapMap
	}
	return c.DeletesAny(name)
}

func (c *Config) validateNewMap() error {
	var errs []error
	known := c.mapNames()
	for _, s := range c.NewMap {
		switch name, _, ok := parseChoice(s, mapChoices["new-map"]...); {
		case !ok:
			errs = append(errs, fmt.Errorf("new-map %q: write MAP=%s or MAP=%s", s, NewMapTable, NewMapMap))
		case !known[name]:
			errs = append(errs, fmt.Errorf("new-map %q: no map is called %s", s, name))
		}
	}
	return errors.Join(errs...)
}
