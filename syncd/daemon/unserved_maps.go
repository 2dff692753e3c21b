package daemon

import (
	"fmt"

	"mapsync/syncd/replicate"
)

// unservedMap is a map that live peers do not replicate with this node, with the reasons. A peer that lacks an optional map has none.
type unservedMap struct {
	peers, texts []string
}

// unserved returns the maps that are refused, pending or not served in either direction with a
// live peer, by name.
func (d *Daemon) unserved() map[string]unservedMap {
	all := make(map[string]unservedMap)
	for _, p := range d.replicator.Status() {
		for i := range p.Maps {
			m := &p.Maps[i]
			text := unservedText(p.Node, m)
			if text == "" {
				continue
			}
			u := all[m.Name]
			u.peers = append(u.peers, p.Node)
			if m.State != replicate.StatePending || !d.config.IsOptional(m.Name) { // otherwise the peer may lack it
				u.texts = append(u.texts, text)
			}
			all[m.Name] = u
		}
	}
	return all
}

// unservedText returns why a map is not replicated with a peer, or "" if it is replicated. It
// returns "" for a peer that has not answered yet, because its initial sync is under way.
func unservedText(peer string, m *replicate.MapStatus) string {
	switch {
	case m.State == replicate.StateWaiting && !m.CaughtUp:
		return "" // the initial sync is under way, which is a reason of its own
	case m.State == replicate.StatePending:
		return peer + " does not have the map"
	case m.State == replicate.StateRefused || m.State == replicate.StateFailed:
		return fmt.Sprintf("not received from %s (%s): %s", peer, m.State, m.Error)
	case m.SendState == replicate.StateExcluded:
		return ""
	case m.SendState == replicate.StateRefused:
		return "refused to " + peer + ": its map cannot hold the entries of this one"
	case m.SendState != replicate.StateServed:
		return fmt.Sprintf("not sent to %s: the peer has not subscribed to it", peer)
	}
	return ""
}

// addUnserved adds the maps that are not replicated with a live peer to the reasons why maps are not
// ready, unless the settings allow such maps.
func (d *Daemon) addUnserved(o *obstacles, unserved map[string]unservedMap) {
	if d.config.AllowUnservedMaps {
		return
	}
	for name, reasons := range unserved {
		if len(reasons.texts) > 0 {
			o.unsynced[name] = append(o.unsynced[name], reasons.texts...)
		}
	}
}
