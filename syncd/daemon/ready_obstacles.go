package daemon

import (
	"slices"
	"strings"
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
	d.addUnserved(o, unserved)
	return o
}

// waitingFor returns why the initial sync of a map is not complete, or "". It does not wait for a
// peer that lacks or refuses the map, because such a peer cannot send its records.
func (d *Daemon) waitingFor(name string) string {
	return d.waitingUntil(d.replicator.InitialSyncDone, name)
}

// waitingUntil is waitingFor by the replicator's InitialSyncDone, FittingReceived or AllReceived.
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
