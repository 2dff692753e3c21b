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

// innerSuffix ends a setting of all inner maps of a map of maps.
const innerSuffix = "[*]"

// Group reports whether the setting is NAME=REF[*]: each inner map of a map of maps, as NAME.KEY.
func (m *Map) Group() bool { return strings.HasSuffix(m.Ref, innerSuffix) }

// Inner returns the setting of the inner map with a key, of a map that is a Group.
func (m *Map) Inner(key string) Map {
	return Map{Name: m.Name + "." + key, Ref: strings.TrimSuffix(m.Ref, innerSuffix) + "[" + key + "]"}
}

// Groups returns the settings of maps that are groups.
func (c *Config) Groups() (groups []Map) {
	for _, s := range c.Maps {
		if strings.HasSuffix(s, innerSuffix) {
			if m, err := ParseMap(s); err == nil {
				groups = append(groups, m)
			}
		}
	}
	return groups
}

// SettingOf returns the name under which the settings have a map: that of the group for an inner map of a
// group, otherwise its own name.
func (c *Config) SettingOf(name string) string {
	for _, g := range c.Groups() {
		if strings.HasPrefix(name, g.Name+".") && !c.hasMap(name) {
			return g.Name
		}
	}
	return name
}

// hasMap reports whether a configured map has this name.
func (c *Config) hasMap(name string) bool {
	return slices.ContainsFunc(c.Maps, func(s string) bool { m, err := ParseMap(s); return err == nil && m.Name == name })
}
