package config

import (
	"errors"
	"fmt"
	"path"
	"strings"

	"github.com/spf13/pflag"
)

// bindTrust declares the settings that control access: which nodes and programs may read and
// write.
func (c *Config) bindTrust(fs *pflag.FlagSet) {
	fs.StringVar(&c.TLSCRL, "tls-crl", c.TLSCRL, "certificate revocation lists of the authority, PEM")
	fs.StringArrayVar(&c.AllowedNames, "allowed-names", c.AllowedNames, "`pattern` of DNS names, IP addresses or SPIFFE URIs whose certificates may replicate, * matches no dot (repeatable; default: every certificate of tls-ca that matches no --observers)")
	fs.StringArrayVar(&c.ReadFrom, "read-from", c.ReadFrom, "nodes that may read a map from this node, `MAP=PATTERN[,PATTERN]` of node names (repeatable; default: all)")
	fs.StringArrayVar(&c.WriteFrom, "write-from", c.WriteFrom, "nodes whose records of a map are accepted, `MAP=PATTERN[,PATTERN]` of node names (repeatable; default: all)")
	fs.StringArrayVar(&c.Observers, "observers", c.Observers, "`pattern` of DNS names, IP addresses or SPIFFE URIs whose certificates may observe, * matches no dot (repeatable; default: none)")
}

// checkPatterns returns an error that joins one error for each invalid pattern.
func checkPatterns(setting string, patterns []string) error {
	var errs []error
	for _, p := range patterns {
		if p == "" || malformed(p) {
			errs = append(errs, fmt.Errorf("%s %q is not usable: write a name with *, ? or [a-z] between its dots and slashes", setting, p))
		}
	}
	return errors.Join(errs...)
}

// malformed reports whether a part of a pattern between dots and slashes is invalid. Peers match the parts one by one.
func malformed(pattern string) bool {
	for part := range strings.SplitAfterSeq(pattern, ".") {
		for label := range strings.SplitAfterSeq(part, "/") {
			if _, err := path.Match(label, ""); err != nil {
				return true
			}
		}
	}
	return false
}

func (c *Config) validateTrust() error {
	errs := []error{checkPatterns("allowed-names", c.AllowedNames), checkPatterns("observers", c.Observers)}
	errs = append(errs, c.validateAccess("read-from", c.ReadFrom), c.validateAccess("write-from", c.WriteFrom))
	if c.TLSCRL != "" && !c.TLS() {
		errs = append(errs, errors.New("tls-crl needs tls-cert, tls-key and tls-ca"))
	}
	return errors.Join(errs...)
}

// MapAccess is one entry of the settings read-from and write-from: MAP=PATTERN[,PATTERN].
type MapAccess struct {
	// Map is the name of the map among the peers.
	Map string
	// Patterns match node names.
	Patterns []string
}

// ParseMapAccess parses one entry of the setting with the given name.
func ParseMapAccess(setting, s string) (MapAccess, error) {
	name, list, ok := strings.Cut(s, "=")
	if !ok || !mapName.MatchString(name) || list == "" {
		return MapAccess{}, fmt.Errorf("%s %q: write MAP=PATTERN[,PATTERN]", setting, s)
	}
	a := MapAccess{Map: name, Patterns: strings.Split(list, ",")}
	return a, checkPatterns(setting, a.Patterns)
}

// AccessOf returns the patterns of node names in entries of read-from or write-from for a map. It
// returns nil if the map has no entry, which allows all nodes.
func AccessOf(entries []string, name string) (patterns []string) {
	for _, s := range entries {
		if !entryOf(s, name) {
			continue
		}
		if a, err := ParseMapAccess("", s); err == nil {
			patterns = append(patterns, a.Patterns...)
		}
	}
	return patterns
}

// validateAccess checks the entries of read-from or write-from. Each entry must name a configured
// map, so that a mistyped name does not leave a map open to all nodes.
func (c *Config) validateAccess(setting string, entries []string) error {
	var errs []error
	known := c.mapNames()
	for _, s := range entries {
		a, err := ParseMapAccess(setting, s)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if !known[a.Map] {
			errs = append(errs, fmt.Errorf("%s %q: no map is called %s", setting, s, a.Map))
		}
	}
	return errors.Join(errs...)
}
