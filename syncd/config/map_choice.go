package config

import (
	"slices"
	"strings"
)

// parseChoice parses an entry MAP=CHOICE of a setting that has a value for each map. ok is false if the entry has
// another form.
func parseChoice(s string, choices ...string) (name, choice string, ok bool) {
	name, choice, _ = strings.Cut(s, "=")
	return name, choice, mapName.MatchString(name) && slices.Contains(choices, choice)
}

// lastChoice returns the choice of the last entry of a map, or an empty string if it has none.
func lastChoice(entries []string, name string, choices ...string) (choice string) {
	for _, s := range entries {
		if !entryOf(s, name) {
			continue
		}
		if _, c, ok := parseChoice(s, choices...); ok {
			choice = c
		}
	}
	return choice
}

// entryOf reports whether an entry MAP=... of a setting has a map. It is faster than to parse the entry.
func entryOf(s, name string) bool {
	rest, ok := strings.CutPrefix(s, name)
	return ok && strings.HasPrefix(rest, "=")
}

// mapNames returns the names of the configured maps.
func (c *Config) mapNames() map[string]bool {
	names := make(map[string]bool, len(c.Maps))
	for _, s := range c.Maps {
		if m, err := ParseMap(s); err == nil {
			names[m.Name] = true
		}
	}
	return names
}
