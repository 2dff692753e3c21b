package config

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
)

// PeerList is the setting expected-peers: node names, or one number of peers.
type PeerList []string

// maxExpected is the maximum of expected-peers. No cluster of full replicas is larger.
const maxExpected = 256

// UnmarshalYAML decodes a list of names, one name or a number.
func (p *PeerList) UnmarshalYAML(unmarshal func(any) error) error {
	var list []string
	if err := unmarshal(&list); err == nil {
		*p = list
		return nil
	}
	var one string
	if err := unmarshal(&one); err != nil {
		return err // parseError formats it
	}
	*p = PeerList{one}
	return nil
}

// Expected returns the peers that expected-peers names, sorted and without this node, and their
// number. If expected-peers is a number, names is nil. A count of 0 means that it is not set.
func (c *Config) Expected() (names []string, count int) {
	if len(c.ExpectedPeers) == 1 {
		if n, err := strconv.ParseUint(c.ExpectedPeers[0], 10, 16); err == nil {
			return nil, int(n)
		}
	}
	for _, name := range c.ExpectedPeers {
		if name != c.NodeName {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	return names, len(names)
}

// clusterName matches valid cluster names. The name becomes the value of a metrics label.
var clusterName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$`)

// number matches values that can only be a number of peers. An IP address is a valid node name
// and does not match.
var number = regexp.MustCompile(`^[-+]?[0-9]+(\.[0-9]+)?$`)

func (c *Config) validateCluster() error {
	var errs []error
	if c.Cluster != "" && !clusterName.MatchString(c.Cluster) {
		errs = append(errs, fmt.Errorf("cluster %q is not usable: letters, digits, '_', '.' and '-', at most 64", c.Cluster))
	}
	if names, n := c.Expected(); names != nil && n > maxExpected {
		errs = append(errs, fmt.Errorf("expected-peers %d is not usable: at most %d", n, maxExpected))
	}
	for _, name := range c.ExpectedPeers {
		if len(c.ExpectedPeers) == 1 && number.MatchString(name) {
			if n, err := strconv.ParseUint(name, 10, 16); err != nil || n > maxExpected {
				errs = append(errs, fmt.Errorf("expected-peers %s is not usable: give a number of at most %d, or names of nodes", name, maxExpected))
			}
			continue
		}
		if !usableNode(name) {
			errs = append(errs, fmt.Errorf("expected-peers %q is not usable: give names of nodes, or one number", name))
		} else if _, err := strconv.Atoi(name); err == nil && len(c.ExpectedPeers) > 1 {
			errs = append(errs, fmt.Errorf("expected-peers %q is mixed with other values: give names of nodes, or one number", name))
		}
	}
	return errors.Join(errs...)
}
