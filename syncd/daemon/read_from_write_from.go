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
	c := d.accessConfig.Load()
	return replicate.Access{Read: allowed(c.ReadFrom, name), Write: allowed(c.WriteFrom, name)}
}

// allowed returns which nodes entries of read-from or write-from allow for a map. nil: all.
func allowed(entries []string, name string) func(node string) bool {
	patterns := config.AccessOf(entries, name)
	if patterns == nil {
		return nil
	}
	return func(node string) bool { return peers.MatchName(patterns, node) }
}

// mayRead reports whether read-from allows a node a map.
func (d *Daemon) mayRead(name, node string) bool {
	may := allowed(d.accessConfig.Load().ReadFrom, name)
	return may == nil || may(node)
}
