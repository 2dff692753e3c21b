package config

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// innerRange matches a setting of several inner maps: NAME=REF[FIRST-LAST].
var innerRange = regexp.MustCompile(`^([^=]+)=(.+)\[([0-9]{1,9})-([0-9]{1,9})\]$`)

// maxInner is the maximum size in bytes of the maps and settings that replace those of ranges, and entrySize the size of one
// without its text. 50 entries of 60 bytes for each of MaxMaps maps are below maxInner.
const maxInner, entrySize = 8 << 20, 100

// expandInnerRanges replaces each map NAME=REF[FIRST-LAST] with the maps NAME.KEY=REF[KEY], and each other setting of
// NAME with one of each of these maps. It fails if metrics has NAME, because no two maps can have the same counter.
func (c *Config) expandInnerRanges() error {
	room := maxInner
	list, ranges, err := expandMaps(c.Maps, &room)
	if err != nil || len(ranges) == 0 {
		return err
	}
	c.Maps = list
	known := c.mapNames()
	for name := range ranges {
		if known[name] {
			return fmt.Errorf("map %s: a map and several inner maps have this name: choose another one", name)
		}
	}
	for i := range c.Metrics {
		if inner := ranges[c.Metrics[i].Map]; inner != nil {
			return metricsOfRange(c.Metrics[i].Map, inner)
		}
	}
	for _, setting := range []*[]string{
		&c.Schemas, &c.Fields, &c.ReadFrom, &c.WriteFrom, &c.Deletes, &c.NewMap, &c.Clears, &c.InPlace, &c.TakeoverExpiries, &c.DrainSumsMaps,
		&c.OptionalMaps, &c.EntrySizes,
	} {
		if *setting, err = expandNames(*setting, ranges, &room); err != nil {
			return err
		}
	}
	return nil
}

// metricsOfRange returns the error about counters of several inner maps.
func metricsOfRange(name string, inner []string) error {
	names := inner[0]
	if last := inner[len(inner)-1]; last != names {
		names += " to " + last
	}
	return fmt.Errorf("metrics of map %q: the name stands for inner maps: name each of them (%s) in an entry with counters of its own", name, names)
}

// takeRoom takes the size of count entries from room. It fails if there is not enough.
func takeRoom(room *int, count int, entry string) error {
	if *room -= count * (len(entry) + entrySize); *room < 0 {
		return fmt.Errorf("the settings of inner maps, one for each key of a range, take more than %d MiB: remove or shorten some", maxInner>>20)
	}
	return nil
}

// expandMaps replaces each map NAME=REF[FIRST-LAST] in a list. It returns the names of the inner maps, by NAME.
func expandMaps(maps []string, room *int) (list []string, ranges map[string][]string, err error) {
	ranges = make(map[string][]string)
	for _, s := range maps {
		part := innerRange.FindStringSubmatch(s)
		if part == nil || !mapName.MatchString(part[1]) {
			list = append(list, s)
			continue
		}
		name, ref := part[1], part[2]
		first, _ := strconv.Atoi(part[3]) // digits only
		last, _ := strconv.Atoi(part[4])
		if first > last || last-first >= MaxMaps {
			return nil, nil, fmt.Errorf("map %q: write [FIRST-LAST] with at most %d keys", s, MaxMaps)
		}
		if err := takeRoom(room, last-first+1, s); err != nil {
			return nil, nil, err
		}
		for key := first; key <= last; key++ {
			inner := fmt.Sprintf("%s.%d", name, key)
			if !mapName.MatchString(inner) {
				return nil, nil, fmt.Errorf("map %q: name %s is not usable: choose a shorter one", s, inner)
			}
			ranges[name] = append(ranges[name], inner)
			list = append(list, fmt.Sprintf("%s=%s[%d]", inner, ref, key))
		}
	}
	return list, ranges, nil
}

// expandNames replaces each entry that begins with the name of a range with one for each of its maps.
func expandNames(entries []string, ranges map[string][]string, room *int) (list []string, err error) {
	for _, s := range entries {
		end := strings.IndexAny(s, "=:")
		if end < 0 {
			end = len(s)
		}
		inner := ranges[s[:end]]
		if inner == nil {
			list = append(list, s)
		}
		if err := takeRoom(room, len(inner), s); err != nil {
			return nil, err
		}
		for _, name := range inner {
			list = append(list, name+s[end:])
		}
	}
	return list, nil
}
