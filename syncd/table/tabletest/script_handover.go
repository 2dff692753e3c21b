package tabletest

import "mapsync/syncd/table"

// drain completes a drain of a node.
func (s *Script) drain(n *Node, _ []string) {
	if s.handovers == nil {
		s.handovers = make(map[string]table.Handover)
	}
	n.Daemon.tab.Update(func(tx *table.Tx) { s.handovers[n.Name] = tx.BeginHandover() })
	s.announce(n)
}

// undrain ends the drain of a node.
func (s *Script) undrain(n *Node, _ []string) {
	n.Daemon.tab.Update(func(tx *table.Tx) { s.printf("%s restores %d entries", n.Name, tx.EndHandover(n.clock())) })
	delete(s.handovers, n.Name)
	s.announce(n)
}

// announce sets what a node has handed over in all tables. A node that has started receives the handovers of the others.
func (s *Script) announce(n *Node) {
	for _, other := range s.world.Up() {
		other.Daemon.tab.Update(func(tx *table.Tx) { tx.SetHandover(n.Name, s.handovers[n.Name]) })
		n.Daemon.tab.Update(func(tx *table.Tx) { tx.SetHandover(other.Name, s.handovers[other.Name]) })
	}
}

// handedOver reports whether the owner of a record has handed it over.
func (d *Daemon) handedOver(c *Content) (yes bool) {
	d.tab.View(func(tx *table.Tx) { yes = c.handedOver(tx) })
	return yes
}

// handedOver is Daemon.handedOver for a table whose lock the caller holds.
func (c *Content) handedOver(tx *table.Tx) bool {
	h := tx.Handover(c.Owner.Node)
	return c.Owner.Incarnation < h.Incarnation || (c.Owner.Incarnation == h.Incarnation && c.version <= h.Version)
}
