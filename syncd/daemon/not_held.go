package daemon

import (
	"fmt"
	"slices"
	"strings"

	"mapsync/syncd/replicate"
)

// NotHeld is the number of entries of a map that a live peer does not hold.
type NotHeld struct {
	Peer string `json:"peer"`
	Map  string `json:"map"`
	// Entries is the sum of Failed, Evicted and Refused. The peer's kernel map has no room for Failed entries, or refuses them. Its
	// LRU map has evicted Evicted entries. The peer cannot hold Refused entries.
	Entries uint64 `json:"entries"`
	Failed  uint64 `json:"failed"`
	Evicted uint64 `json:"evicted"`
	Refused uint64 `json:"refused"`
	// Live is the number of live records at the peer. MaxEntries is the size of its map.
	Live       uint64 `json:"live"`
	MaxEntries uint64 `json:"max_entries"`
	// Unknown means that the peer does not report which entries it does not hold.
	Unknown bool `json:"unknown,omitempty"`
}

// Text returns one line of text for operators.
func (n *NotHeld) Text() string {
	if n.Unknown {
		return fmt.Sprintf("%s does not report how much it holds of %s (older release)", n.Peer, n.Map)
	}
	var why []string
	if n.Failed > 0 {
		why = append(why, fmt.Sprintf("%d do not go into its kernel map (%d records for %d entries)", n.Failed, n.Live, n.MaxEntries))
	}
	if n.Evicted > 0 {
		why = append(why, fmt.Sprintf("%d were evicted from its LRU map", n.Evicted))
	}
	if n.Refused > 0 {
		why = append(why, fmt.Sprintf("%d cannot be held there", n.Refused))
	}
	return fmt.Sprintf("%d entries of %s not held by %s: %s", n.Entries, n.Map, n.Peer, strings.Join(why, "; "))
}

// notHeld returns the entries that peers do not hold, of the maps in marks.
func notHeld(marks []watermark, peers []replicate.PeerStatus) (list []NotHeld) {
	for i := range peers {
		for j := range peers[i].Maps {
			m := &peers[i].Maps[j]
			if m.SendState == replicate.StateExcluded {
				continue
			}
			if !slices.ContainsFunc(marks, func(k watermark) bool { return k.name == m.Name }) || m.Serving && m.Reporting && m.Report.NotHeld() == 0 {
				continue
			}
			list = append(list, NotHeld{
				Peer: peers[i].Node, Map: m.Name, Entries: m.Report.NotHeld(), Failed: m.Report.Failed, Evicted: m.Report.Evicted, Refused: m.Report.Refused,
				Live: m.Report.Live, MaxEntries: uint64(m.Report.Kernel.MaxEntries), Unknown: !m.Reporting,
			})
		}
	}
	return list
}

func exceptions(list []replicate.Exception) (out []Exception) {
	for _, x := range list {
		out = append(out, Exception{Entry: x.Key, Reason: x.Reason})
	}
	return out
}
