package daemon

import (
	"mapsync/peers"
	"mapsync/syncd/config"
	"mapsync/syncd/replicate"
)

// access returns which nodes may read and write a map, according to read-from and write-from.
func (d *Daemon) access(name string) replicate.Access {
	match := func(entries []string) func(string) bool {
		patterns := config.AccessOf(entries, name)
		if patterns == nil {
			return nil
		}
		return func(node string) bool { return peers.MatchName(patterns, node) }
	}
	c := d.accessConfig.Load()
	return replicate.Access{Read: match(c.ReadFrom), Write: match(c.WriteFrom)}
}
