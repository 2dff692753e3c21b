package config

import (
	"errors"
	"fmt"
)

// The values of an entry of the setting deletes: which deletes by bpf(2) replicate.
const (
	DeletesOwner = "owner" // those of the entries that this node owns; the default
	DeletesAny   = "any"   // those of all entries
)

// DeletesAny reports whether each delete of an entry in a map replicates, whichever node owns the entry. The
// last entry of the map in the setting decides.
func (c *Config) DeletesAny(name string) bool {
	return lastChoice(c.Deletes, name, mapChoices["deletes"]...) == DeletesAny
}

func (c *Config) validateDeletes() error {
	var errs []error
	known := c.mapNames()
	for _, s := range c.Deletes {
		switch name, _, ok := parseChoice(s, mapChoices["deletes"]...); {
		case !ok:
			errs = append(errs, fmt.Errorf("deletes %q: write MAP=%s or MAP=%s", s, DeletesAny, DeletesOwner))
		case !known[name]:
			errs = append(errs, fmt.Errorf("deletes %q: no map is called %s", s, name))
		}
	}
	return errors.Join(errs...)
}
