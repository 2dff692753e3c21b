package config

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// TakeoverNever is the value of an entry of the setting takeover-expiry for a map whose entries stay.
const TakeoverNever = "never"

// parseTakeoverExpiry parses one entry of the setting takeover-expiry: MAP=DURATION or MAP=never. The result for
// never is 0.
func parseTakeoverExpiry(s string) (name string, after time.Duration, err error) {
	name, value, _ := strings.Cut(s, "=")
	if value != TakeoverNever {
		after, err = time.ParseDuration(value)
	}
	if err != nil || !mapName.MatchString(name) || after < 0 || (after == 0 && value != TakeoverNever) {
		return "", 0, fmt.Errorf("takeover-expiry %q: write MAP=DURATION or MAP=%s", s, TakeoverNever)
	}
	return name, after, nil
}

// TakeoverExpiry returns the time after which unchanged entries of a map expire that syncd wrote and whose owner
// has left, 0 for never. set is false if the setting does not have the map. The last entry of the map decides.
func (c *Config) TakeoverExpiry(name string) (after time.Duration, set bool) {
	for _, s := range c.TakeoverExpiries {
		if of, d, err := parseTakeoverExpiry(s); err == nil && of == name {
			after, set = d, true
		}
	}
	return after, set
}

func (c *Config) validateTakeoverExpiry() error {
	var errs []error
	least := c.LongestScanInterval() + c.RefreshInterval
	for _, s := range c.TakeoverExpiries {
		name, after, err := parseTakeoverExpiry(s)
		switch {
		case err != nil:
			errs = append(errs, err)
		case !c.hasMap(name):
			errs = append(errs, fmt.Errorf("takeover-expiry %q: no map is called %s", s, name))
		case after == 0:
		case c.RefreshInterval == 0:
			errs = append(errs, fmt.Errorf("takeover-expiry %q needs a refresh-interval above 0, which shows that an entry is in use", s))
		case after < least:
			errs = append(errs, fmt.Errorf("takeover-expiry %q is below max-scan-interval and refresh-interval together: give at least %s", s, least))
		}
	}
	return errors.Join(errs...)
}
