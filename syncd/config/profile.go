package config

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
)

//go:embed profiles/*.yaml
var profileFiles embed.FS

// Profile is the settings for the maps of one load balancer, and what its users gain.
type Profile struct {
	// Name is how the setting profile names it. For is the load balancer.
	Name string `yaml:"profile" json:"profile"`
	For  string `yaml:"for" json:"for"`
	// Gains states which deployments gain from replication, and Limits what it cannot do.
	Gains  string `yaml:"gains" json:"gains"`
	Limits string `yaml:"limits" json:"limits"`

	// The settings have the names and the meaning of those of a node.
	Maps             []string `yaml:"map" json:"map"`
	Referenced       []string `yaml:"referenced-map" json:"referenced-map,omitempty"`
	OptionalMaps     []string `yaml:"optional-map" json:"optional-map,omitempty"`
	EntrySizes       []string `yaml:"entry-size" json:"entry-size,omitempty"`
	Fields           []string `yaml:"field" json:"field,omitempty"`
	Deletes          []string `yaml:"deletes" json:"deletes,omitempty"`
	NewMap           []string `yaml:"new-map" json:"new-map,omitempty"`
	Clears           []string `yaml:"clears" json:"clears,omitempty"`
	InPlace          []string `yaml:"in-place" json:"in-place,omitempty"`
	TakeoverExpiries []string `yaml:"takeover-expiry" json:"takeover-expiry,omitempty"`

	text string
}

// Text returns the profile's file.
func (p *Profile) Text() string { return p.text }

// Profiles returns the names of the profiles in this program, in alphabetical order.
func Profiles() []string {
	entries, _ := profileFiles.ReadDir("profiles") // they are part of the program
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = strings.TrimSuffix(e.Name(), ".yaml")
	}
	return names
}

// ReadProfile returns a profile of this program by its name, or that of a file by a path with a slash.
func ReadProfile(name string) (*Profile, error) {
	var data []byte
	var err error
	if strings.Contains(name, "/") {
		data, err = readLimited(name)
		if inFile, ok := errors.AsType[*fs.PathError](err); ok {
			err = inFile.Err // the path follows, in quotes
		}
	} else if data, err = profileFiles.ReadFile("profiles/" + name + ".yaml"); errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("it is unknown: choose one of %s, or the path of a file", strings.Join(Profiles(), ", "))
	}
	p := &Profile{text: string(data)}
	if err == nil {
		err = parseYAML(data, p)
	}
	if err == nil && (p.Name == "" || len(p.Maps) == 0) {
		err = errors.New("it has no profile or no map")
	}
	if err != nil {
		return nil, fmt.Errorf("profile %q: %w", name, err)
	}
	return p, nil
}

func readLimited(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err == nil && (!info.Mode().IsRegular() || info.Size() > maxFileSize) {
		return nil, fmt.Errorf("give a regular file of at most %d bytes", maxFileSize)
	}
	if err != nil {
		return nil, err
	}
	return os.ReadFile(path)
}

// applyProfiles adds the settings of the profiles. The settings of the node take precedence: its map of the same name, all its entries for
// a field, and its entries for a map, which are the last ones.
func (c *Config) applyProfiles() error {
	var profiles []*Profile
	for _, name := range c.Profiles {
		p, err := ReadProfile(name)
		if err != nil {
			return err
		}
		profiles = append(profiles, p)
	}
	own, fields := c.mapNames(), make(map[string]bool)
	for _, s := range c.Fields {
		fields[fieldOf(s)] = true
	}
	from, referenced := make(map[string]string), (&Config{Maps: c.Referenced}).mapNames()
	for _, p := range profiles {
		for _, s := range p.Maps {
			m, err := ParseMap(s)
			if err != nil {
				return fmt.Errorf("profile %q: %w", p.Name, err)
			}
			if other, ok := from[m.Name]; ok {
				return fmt.Errorf("profiles %s and %s both have a map %s: use one of them, or copy one to a file and rename the map", other, p.Name, m.Name)
			}
			if from[m.Name] = p.Name; !own[m.Name] {
				c.Maps = append(c.Maps, s)
			}
		}
		for _, s := range p.Referenced {
			m, err := ParseMap(s)
			if err != nil {
				return fmt.Errorf("profile %q: %w", p.Name, err)
			}
			if !referenced[m.Name] {
				c.Referenced, referenced[m.Name] = append(c.Referenced, s), true
			}
		}
		for _, s := range p.Fields {
			if !fields[fieldOf(s)] {
				c.Fields = append(c.Fields, s)
			}
		}
		c.OptionalMaps = append(c.OptionalMaps, p.OptionalMaps...)
		for _, list := range []struct {
			of *[]string
			p  []string
		}{
			{&c.EntrySizes, p.EntrySizes},
			{&c.Deletes, p.Deletes},
			{&c.NewMap, p.NewMap},
			{&c.Clears, p.Clears},
			{&c.InPlace, p.InPlace},
			{&c.TakeoverExpiries, p.TakeoverExpiries},
		} {
			*list.of = slices.Concat(list.p, *list.of)
		}
	}
	return nil
}

// MapsOf returns the entries of the setting map for the maps of a profile, ranges of inner maps resolved.
func (c *Config) MapsOf(p *Profile) (list []string) {
	names := (&Config{Maps: p.Maps}).mapNames()
	for _, s := range p.Maps {
		if part := innerRange.FindStringSubmatch(s); part != nil {
			names[part[1]] = true
		}
	}
	for _, s := range c.Maps {
		m, err := ParseMap(s)
		outer := m.Name
		if dot := strings.LastIndexByte(outer, '.'); dot > 0 {
			outer = outer[:dot]
		}
		if err == nil && (names[m.Name] || names[outer]) {
			list = append(list, s)
		}
	}
	return list
}

// fieldOf returns the map and the path of an entry of the setting field.
func fieldOf(setting string) string {
	place, _, _ := strings.Cut(setting, "=")
	return strings.Replace(place, ":value.", ":", 1)
}

// ReferencedNames returns the names of the referenced maps.
func (c *Config) ReferencedNames() (names []string) {
	for _, s := range c.Referenced {
		if m, err := ParseMap(s); err == nil {
			names = append(names, m.Name)
		}
	}
	return names
}

// IsOptional reports whether a map may be absent.
func (c *Config) IsOptional(name string) bool { return slices.Contains(c.OptionalMaps, name) }

// CheckEntrySize returns an error if the entries of a map, in bytes, have none of the sizes in the settings.
func (c *Config) CheckEntrySize(name string, key, value int) error {
	list, ok := "", false
	for _, s := range c.EntrySizes {
		if entryOf(s, name) {
			list, ok = strings.TrimPrefix(s, name+"="), true
		}
	}
	if !ok || slices.Contains(strings.Split(list, ","), fmt.Sprintf("%d+%d", key, value)) {
		return nil
	}
	return fmt.Errorf("the map's entries have %d+%d bytes, and entry-size has %s: it is another version of the load balancer; "+
		"check the fields with `syncd schema show`, then set entry-size: ['%s=%d+%d']", key, value, list, name, key, value)
}

func (c *Config) validateOptional() error {
	var errs []error
	known := c.mapNames()
	for _, s := range c.Referenced {
		switch m, err := ParseMap(s); {
		case err != nil:
			errs = append(errs, fmt.Errorf("referenced-%w", err))
		case known[m.Name]:
			errs = append(errs, fmt.Errorf("referenced-map %q: a map that is replicated is called %s, too: a referenced map is never replicated", s, m.Name))
		}
	}
	for _, name := range c.OptionalMaps {
		if !known[name] {
			errs = append(errs, fmt.Errorf("optional-map %q: no map is called %s", name, name))
		}
	}
	for _, s := range c.EntrySizes {
		name, sizes, ok := strings.Cut(s, "=")
		if !ok || !mapName.MatchString(name) || !areSizes(sizes) {
			errs = append(errs, fmt.Errorf("entry-size %q: write MAP=KEY+VALUE[,KEY+VALUE], in bytes", s))
		} else if !known[name] {
			errs = append(errs, fmt.Errorf("entry-size %q: no map is called %s", s, name))
		}
	}
	return errors.Join(errs...)
}

// areSizes reports whether a text is a list of KEY+VALUE.
func areSizes(list string) bool {
	for each := range strings.SplitSeq(list, ",") {
		var key, value int
		if n, err := fmt.Sscanf(each, "%d+%d", &key, &value); err != nil || n != 2 || each != fmt.Sprintf("%d+%d", key, value) || key <= 0 || value <= 0 {
			return false
		}
	}
	return true
}
