package daemon

import (
	"mapsync/peers"
	"mapsync/syncd/config"
	"mapsync/syncd/replicate"
)

// access returns which nodes may read and write a map, according to read-from and write-from. While the map is paused, none may.
func (d *Daemon) access(name string) replicate.Access {
	if m := d.replica(name); m != nil && !m.pausedSince().IsZero() {
		self := d.self.Node
		none := func(node string) bool { return node == self }
		return replicate.Access{Read: none, Write: none}
	}
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
