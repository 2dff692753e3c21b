package daemon

import (
	"fmt"
	"slices"
	"strings"

	"mapsync/syncd/replicate"
)

// obstacles are what keeps maps from being ready that is not their own doing: peers that have
// not sent all, that do not replicate a map with this node, or that hold something else.
type obstacles struct {
	all   string              // concerns every map, or empty
	unfed map[string][]string // reasons by map: the initial sync is not complete
	apart map[string][]string // reasons by map: the digests do not agree
}

// of returns the reason why a map is not complete, or nothing.
func (o *obstacles) of(name string) string {
	if o.all != "" {
		return o.all
	}
	return strings.Join(o.unfed[name], "; ")
}

// text returns why a map is not ready, or nothing.
func (o *obstacles) text(name string) string {
	if reason := o.of(name); reason != "" {
		return reason
	}
	return strings.Join(o.apart[name], "; ")
}

// obstacles asks the replicator, once for all maps.
func (d *Daemon) obstacles() *obstacles {
	o := &obstacles{all: d.withoutPeers(), unfed: make(map[string][]string), apart: make(map[string][]string)}
	if o.all != "" {
		return o
	}
	unserved := d.unserved()
	if ok, missing := d.replicator.SyncedAll(); !ok {
		o.all = addPeers(o.unfed, syncing, missing, unserved)
	}
	if ok, missing := d.replicator.Agreed(); !ok {
		o.all = orElse(o.all, addPeers(o.apart, "digests do not agree yet with ", missing, unserved))
	}
	if !d.config.AllowUnservedMaps {
		for name, reasons := range unserved {
			o.unfed[name] = append(o.unfed[name], reasons.texts...)
		}
	}
	return o
}

// waitingFor returns what keeps the initial sync of a map from being complete, or nothing. A
// map that a peer does not have, or refuses, is not waited for: whatever the peer holds
// cannot come.
func (d *Daemon) waitingFor(name string) string {
	if all := d.withoutPeers(); all != "" {
		return all
	}
	o := obstacles{unfed: make(map[string][]string)}
	if ok, missing := d.replicator.SyncedAll(); !ok {
		o.all = addPeers(o.unfed, syncing, missing, nil)
	}
	return o.of(name)
}

const syncing = "initial sync is under way with "

// addPeers adds a reason for each map in a list of peer/map, with the peers. Peers that have
// another reason already are left out. It returns a reason that concerns all maps, or
// nothing.
func addPeers(reasons map[string][]string, text string, list []string, except map[string]unservedMap) string {
	peers := make(map[string][]string)
	for _, s := range list {
		peer, rest, ok := strings.Cut(s, "/")
		if !ok {
			return "waiting for " + s
		}
		name, detail, _ := strings.Cut(rest, " ") // a reason may follow
		if detail != "" {
			detail = " " + detail
		}
		if !slices.Contains(except[name].peers, peer) {
			peers[name] = append(peers[name], peer+detail)
		}
	}
	for name, list := range peers {
		reasons[name] = append(reasons[name], text+strings.Join(list, ", "))
	}
	return ""
}

// unservedMap is a map that live peers do not replicate with this node, with the reasons.
type unservedMap struct {
	peers, texts []string
}

// unserved returns the maps that are refused, pending or not served in either direction with
// a live peer.
func (d *Daemon) unserved() map[string]unservedMap {
	all := make(map[string]unservedMap)
	for _, p := range d.replicator.Status() {
		for i := range p.Maps {
			m := &p.Maps[i]
			if text := unservedText(p.Node, m); text != "" {
				u := all[m.Name]
				all[m.Name] = unservedMap{append(u.peers, p.Node), append(u.texts, text)}
			}
		}
	}
	return all
}

// unservedText says why a map is not replicated with a peer, or nothing if it is. A peer that
// is yet to answer does not count where it is about to send.
func unservedText(peer string, m *replicate.MapStatus) string {
	switch {
	case m.State == replicate.StateWaiting && !m.CaughtUp:
		return "" // the initial sync is under way, which is reason enough
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
