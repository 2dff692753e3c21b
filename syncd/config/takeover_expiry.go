package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// TakeoverNever is the value of an entry of the setting takeover-expiry for a map whose entries stay.
const TakeoverNever = "never"

// takeoverExpiry is one entry of the setting takeover-expiry.
type takeoverExpiry struct {
	name  string
	after time.Duration // 0: never
	field string        // each use of an entry changes it; empty: the hook on lookups shows uses
}

// parseTakeoverExpiry parses MAP=DURATION, MAP=DURATION:FIELD or MAP=never.
func parseTakeoverExpiry(s string) (e takeoverExpiry, err error) {
	name, value, _ := strings.Cut(s, "=")
	e.name = name
	if value != TakeoverNever {
		var after string
		var named bool
		after, e.field, named = strings.Cut(value, ":")
		if e.after, err = time.ParseDuration(after); e.after <= 0 || named && e.field == "" {
			err = errors.Join(err, errors.New("no time"))
		}
	}
	if err != nil || !mapName.MatchString(name) {
		return e, fmt.Errorf("takeover-expiry %q: write MAP=DURATION, MAP=DURATION:FIELD or MAP=%s", s, TakeoverNever)
	}
	return e, nil
}

// takeoverExpiry returns the last entry of a map in the setting. set is false if there is none.
func (c *Config) takeoverExpiry(name string) (last takeoverExpiry, set bool) {
	for _, s := range c.TakeoverExpiries {
		if !entryOf(s, name) {
			continue
		}
		if e, err := parseTakeoverExpiry(s); err == nil {
			last, set = e, true
		}
	}
	return last, set
}

// TakeoverExpiry returns the time after which unused entries of a map expire that syncd wrote and whose owner
// has left, 0 for never. set is false if the setting does not have the map. The last entry of the map decides.
func (c *Config) TakeoverExpiry(name string) (after time.Duration, set bool) {
	e, set := c.takeoverExpiry(name)
	return e.after, set
}

// TakeoverField returns the field of a map that each use of an entry changes, empty if the setting names none.
func (c *Config) TakeoverField(name string) string {
	e, _ := c.takeoverExpiry(name)
	return e.field
}

// WatchesUses reports whether the hook on lookups must show which entries of a map are in use. The sums of drained
// maps are in a map of syncd, which no data plane uses.
func (c *Config) WatchesUses(name string) bool {
	e, _ := c.takeoverExpiry(name)
	return e.after > 0 && e.field == "" && !c.DrainSums(name)
}

// WatchesAnyUses reports whether WatchesUses is true for a configured map.
func (c *Config) WatchesAnyUses() bool {
	return slices.ContainsFunc(c.Maps, func(s string) bool {
		m, err := ParseMap(s)
		return err == nil && c.WatchesUses(m.Name)
	})
}

func (c *Config) validateTakeoverExpiry() error {
	var errs []error
	known := c.mapNames()
	least := c.LongestScanInterval() + c.RefreshInterval
	for _, s := range c.TakeoverExpiries {
		e, err := parseTakeoverExpiry(s)
		switch {
		case err != nil:
			errs = append(errs, err)
		case !known[e.name]:
			errs = append(errs, fmt.Errorf("takeover-expiry %q: no map is called %s", s, e.name))
		case e.after == 0:
		case c.RefreshInterval == 0:
			errs = append(errs, fmt.Errorf("takeover-expiry %q needs a refresh-interval above 0, which shows that an entry is in use", s))
		case e.after < least:
			errs = append(errs, fmt.Errorf("takeover-expiry %q is below max-scan-interval and refresh-interval together: give at least %s", s, least))
		}
	}
	return errors.Join(errs...)
}
