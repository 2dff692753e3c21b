package daemon

import (
	"fmt"
	"slices"
	"strings"

	"mapsync/syncd/replicate"
)

// obstacles are the reasons outside a map why it is not ready: peers that have not sent all
// records, that do not replicate a map with this node, or that hold other records.
type obstacles struct {
	allMaps   string              // reason that concerns every map, or empty
	unsynced  map[string][]string // reasons by map: the initial sync is not complete
	divergent map[string][]string // reasons by map: the digests do not agree
}

// syncReason returns why the initial sync of a map is not complete, or "".
func (o *obstacles) syncReason(name string) string {
	if o.allMaps != "" {
		return o.allMaps
	}
	return strings.Join(o.unsynced[name], "; ")
}

// reason returns why a map is not ready, or "".
func (o *obstacles) reason(name string) string {
	if reason := o.syncReason(name); reason != "" {
		return reason
	}
	return strings.Join(o.divergent[name], "; ")
}

// obstacles reads the obstacles of all maps from the replicator.
func (d *Daemon) obstacles() *obstacles {
	o := &obstacles{allMaps: d.membershipReason(), unsynced: make(map[string][]string), divergent: make(map[string][]string)}
	if o.allMaps != "" {
		return o
	}
	unserved := d.unserved()
	if ok, missing := d.replicator.InitialSyncDone(); !ok {
		o.allMaps = addPeers(o.unsynced, syncing, missing, unserved)
	}
	if ok, missing := d.replicator.InSync(); !ok {
		o.allMaps = orElse(o.allMaps, addPeers(o.divergent, "digests do not agree yet with ", missing, unserved))
	}
	if !d.config.AllowUnservedMaps {
		for name, reasons := range unserved {
			o.unsynced[name] = append(o.unsynced[name], reasons.texts...)
		}
	}
	return o
}

// waitingFor returns why the initial sync of a map is not complete, or "". It does not wait for a
// peer that lacks or refuses the map, because such a peer cannot send its records.
func (d *Daemon) waitingFor(name string) string {
	return d.waitingUntil(d.replicator.InitialSyncDone, name)
}

// waitingUntil is waitingFor by the replicator's InitialSyncDone or AllReceived.
func (d *Daemon) waitingUntil(all func() (bool, []string), name string) string {
	if why := d.membershipReason(); why != "" {
		return why
	}
	o := obstacles{unsynced: make(map[string][]string)}
	if ok, missing := all(); !ok {
		o.allMaps = addPeers(o.unsynced, syncing, missing, nil)
	}
	return o.syncReason(name)
}

const syncing = "initial sync is under way with "

// addPeers adds one reason for each map in a list of peer/map: text and the peers. It leaves out
// peers in except, which have another reason. It returns a reason that concerns all maps, or "".
func addPeers(reasons map[string][]string, text string, list []string, except map[string]unservedMap) string {
	peers := make(map[string][]string)
	for _, s := range list {
		peer, rest, ok := strings.Cut(s, "/")
		if !ok {
			return "waiting for " + s
		}
		name, detail, _ := strings.Cut(rest, " ") // a detail may follow
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

// unserved returns the maps that are refused, pending or not served in either direction with a
// live peer, by name.
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
