package replicate

import (
	"fmt"
	"slices"
	"time"
)

// A live peer from which this node receives nothing is replaced: another peer that receives the map
// from it sends its records. If this node has never received everything from the peer, and no other peer receives from
// it, any other peer sends what it has: this node starts, and the peer may have ended.

// chooseRelays chooses a peer that sends the records of each unreachable node, and sets via of that
// node. It returns the chosen peers with the sorted names of the nodes. all is sorted by start time.
func chooseRelays(all []mapSource) map[string][]string {
	relays := make(map[string][]string)
	for i := range all {
		p := &all[i]
		// An earlier choice is kept while it is possible.
		was := p.via
		p.via = ""
		if !p.unreachable {
			continue
		}
		var chosen *mapSource
		for j := range all {
			c := &all[j]
			_, c.receives = slices.BinarySearch(c.sources, p.peer.Node)
			if !c.receives && (p.fullSyncDone || !c.fullSyncDone) || !c.serving || len(relays[c.peer.Node]) == maxRequested {
				continue
			}
			if chosen == nil || c.relaysBetter(chosen, was) {
				chosen = c
			}
		}
		if chosen != nil {
			p.via = chosen.peer.Node
			relays[p.via] = append(relays[p.via], p.peer.Node)
		}
	}
	for _, nodes := range relays {
		slices.Sort(nodes)
	}
	return relays
}

// relaysBetter reports whether a peer is a better relay than the best one so far. was is the present relay. A peer that does
// not send what was requested is used only if no other peer receives from the owner.
func (p *mapSource) relaysBetter(than *mapSource, was string) bool {
	switch {
	case p.receives != than.receives:
		return p.receives
	case p.candidate != than.candidate:
		return p.candidate
	}
	return p.peer.Node == was
}

// disconnectedReason returns for how long nothing was received of the map, if that is longer than a
// reconnect takes, else an empty string. The caller holds inboundStream.mu.
func (in *inboundMap) disconnectedReason(now time.Time) string {
	if in.state != StateWaiting && in.state != StateFailed {
		return ""
	}
	// lastServing is updated by assignRoles, at least every 250 ms.
	gap := now.Sub(in.owners.lastServing)
	switch {
	case gap < in.stream.r.opt.rerouteDelay:
		return ""
	case in.owners.via != "":
		return fmt.Sprintf("nothing has been received from the peer for %s; its records come through %s",
			gap.Round(time.Second), in.owners.via)
	}
	return fmt.Sprintf("nothing has been received from the peer for %s, and no other peer receives from it", gap.Round(time.Second))
}
