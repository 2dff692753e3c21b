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
		if of, c, ok := parseChoice(s, choices...); ok && of == name {
			choice = c
		}
	}
	return choice
}

// hasMap reports whether a configured map has this name.
func (c *Config) hasMap(name string) bool {
	return slices.ContainsFunc(c.Maps, func(s string) bool { m, err := ParseMap(s); return err == nil && m.Name == name })
}
