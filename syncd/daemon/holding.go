package daemon

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"mapsync/syncd/replicate"
)

// inFlight is the age up to which changes that a peer has not acknowledged do not count as missing.
const inFlight = 5 * time.Second

// MapRedundancy is how much of one map of this node the live peers hold.
type MapRedundancy struct {
	Map string `json:"map"`
	// Live is the number of peers that can take over the map.
	Live  int       `json:"live"`
	Peers []Holding `json:"peers"` // without those that the settings exclude
}

// Holding is how much of a map of this node a live peer holds. The peer can take over the map if streams in both directions are up,
// it is ready and not drained, its kernel map exists, and Share is at least redundancy-share.
type Holding struct {
	Peer string `json:"peer"`
	// Entries is the number of this node's live records. The peer holds at least Held of them.
	Entries uint64  `json:"entries"`
	Held    uint64  `json:"held"`
	Share   float64 `json:"share"` // Held of Entries; 1 if Entries is 0
	// Reason is why the peer cannot take over the map, as text for operators; empty: it can.
	Reason string `json:"reason,omitempty"`
	// Drained reports that the reason is a drain of the peer.
	Drained bool `json:"drained,omitempty"`
}

// mapRedundancy returns how much of each map the live peers hold.
func (d *Daemon) mapRedundancy(peers []replicate.PeerStatus) []MapRedundancy {
	list := []MapRedundancy{}
	for _, m := range d.replicas() {
		r := MapRedundancy{Map: m.name, Peers: []Holding{}}
		unsent, _ := d.replicator.Unsent(m.name)
		for i := range peers {
			s := mapOf(&peers[i], m.name)
			if s == nil || s.SendState == replicate.StateExcluded {
				continue
			}
			h := holding(&peers[i], s, uint64(unsent), d.config.RedundancyShare/100)
			if r.Peers = append(r.Peers, h); h.Reason == "" {
				r.Live++
			}
		}
		list = append(list, r)
	}
	return list
}

// mapOf returns the status of a map with a peer, or nil if the map has no table yet.
func mapOf(p *replicate.PeerStatus, name string) *replicate.MapStatus {
	for i := range p.Maps {
		if p.Maps[i].Name == name {
			return &p.Maps[i]
		}
	}
	return nil
}

// holding returns how much of a map a peer holds. unsent is the number of entries of the map that this node cannot send. share is the
// lowest share of a peer that can take over.
func holding(p *replicate.PeerStatus, m *replicate.MapStatus, unsent uint64, share float64) Holding {
	h := Holding{Peer: p.Node, Entries: m.Records}
	r := &m.Report
	switch reason := broken(p); {
	case reason != "":
		h.Reason = reason
		return h
	case !m.Serving:
		h.Reason = fmt.Sprintf("%s does not receive %s", p.Node, m.Name)
		return h
	case !m.Reporting: // an older release
		h.setHeld(0, share)
		return h
	case r.At.IsZero():
		h.Reason = fmt.Sprintf("%s has yet to report how much it holds of %s", p.Node, m.Name)
		return h
	case r.Kernel.MaxEntries == 0:
		h.Reason = fmt.Sprintf("%s has no map %s", p.Node, m.Name)
		return h
	}
	missing, causes := missingEntries(m, unsent)
	if h.setHeld(missing, share) {
		h.Reason = fmt.Sprintf("%s holds %d of %d entries of %s (%s)", p.Node, h.Held, h.Entries, m.Name, strings.Join(causes, ", "))
	}
	switch r.State {
	case replicate.NodeStateDrained:
		h.Reason, h.Drained = p.Node+" is drained", h.Reason == ""
	case replicate.NodeStateNotReady:
		h.Reason = p.Node + " is not ready"
	}
	return h
}

// setHeld sets how much the peer holds. It reports whether that is below the share.
func (h *Holding) setHeld(missing uint64, share float64) (below bool) {
	h.Held, h.Share = h.Entries-min(missing, h.Entries), 1
	if h.Entries > 0 {
		h.Share = float64(h.Held) / float64(h.Entries)
	}
	return h.Share < share
}

// missingEntries returns at most how many entries of this node a peer does not hold, and the causes.
func missingEntries(m *replicate.MapStatus, unsent uint64) (n uint64, causes []string) {
	late := uint64(0)
	if m.Lag > inFlight {
		late = m.LagEntries
	}
	for _, c := range []struct {
		n     uint64
		cause string
	}{
		{m.Report.Failed, "no room"},
		{m.Report.Evicted, "LRU evictions"},
		{m.Report.Refused, "refused there"},
		{unsent, "cannot be sent"},
		{late, "not received yet"},
	} {
		if n += c.n; c.n > 0 {
			causes = append(causes, c.cause)
		}
	}
	return n, causes
}

// cannotTakeOver returns why a live peer cannot take over all maps, or "". drained reports that the peer only is drained.
func cannotTakeOver(p *replicate.PeerStatus, maps []MapRedundancy) (reason string, drained bool) {
	if reason := broken(p); reason != "" {
		return reason, false
	}
	var reasons []string
	drained = true
	for i := range maps {
		for _, h := range maps[i].Peers {
			if h.Peer != p.Node || h.Reason == "" {
				continue
			}
			if drained = drained && h.Drained; !slices.Contains(reasons, h.Reason) {
				reasons = append(reasons, h.Reason)
			}
		}
	}
	if more := len(reasons) - maxNamed; more > 0 {
		reasons = append(reasons[:maxNamed], fmt.Sprintf("and %d more maps", more))
	}
	return strings.Join(reasons, ", "), drained && len(reasons) > 0
}

// mapTypeLRU is the name of LRU maps in the status.
const mapTypeLRU = "lru_hash"

// mapTypeName returns the name of a map type in the status.
func mapTypeName(t replicate.MapType) string {
	switch t {
	case replicate.MapTypeHash:
		return "hash"
	case replicate.MapTypeLRUHash:
		return mapTypeLRU
	case replicate.MapTypeArray:
		return "array"
	}
	return ""
}

// nodeStateName returns the name of the state of a node in the status.
func nodeStateName(s replicate.NodeState) string {
	switch s {
	case replicate.NodeStateReady:
		return "ready"
	case replicate.NodeStateNotReady:
		return "not_ready"
	case replicate.NodeStateDrained:
		return "drained"
	}
	return ""
}
