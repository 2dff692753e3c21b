package daemon

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"mapsync/syncd/replicate"
)

// Redundancy is the number of peers that can take over from this node now, and the expected number.
type Redundancy struct {
	// Expected is the number of peers according to expected-peers; 0: it is not set.
	Expected int `json:"expected"`
	// Live is the number of these that can take over all maps of this node: see Holding. If expected-peers is a
	// number or not set, Live counts all peers.
	Live int `json:"live"`
	// Problem has the reason for each peer that cannot take over, as text for operators, or is empty: "lb2 lost 14 s ago". If
	// expected-peers is not set, it has the live peers only.
	Problem string `json:"problem,omitempty"`
	// Announced reports that all peers that cannot take over are drained.
	Announced bool `json:"announced,omitempty"`
	// Maps has how much of each map the live peers hold.
	Maps []MapRedundancy `json:"maps"`
}

const (
	// contactInterval is the interval at which contacts with peers are recorded.
	contactInterval = time.Second
	// maxContacts is the maximum number of nodes whose last contact is stored. maxAbsent is the
	// maximum number of them that are listed, besides the nodes that expected-peers names.
	maxContacts = 256
	maxAbsent   = 64
)

// redundancy returns the number of live peers and of expected peers, and the absent nodes.
// Expected nodes come first. Within both groups, the node with the latest contact comes first.
func (d *Daemon) redundancy(now time.Time) (Redundancy, []AbsentPeer) {
	seen := d.replicator.Contacts()
	d.contacts.note(seen)
	names, count := d.config.Expected()
	r := Redundancy{Expected: count}
	peers := d.replicator.Status()
	r.Maps = d.mapRedundancy(peers)
	live := make(map[string]bool)
	var problems []string
	drained := 0
	for i := range peers {
		p := &peers[i]
		if names != nil && !slices.Contains(names, p.Node) {
			continue
		}
		live[p.Node] = true
		reason, announced := cannotTakeOver(p, r.Maps)
		if reason == "" {
			r.Live++
			continue
		}
		problems = append(problems, reason)
		if announced {
			drained++
		}
	}
	missing := count - len(live)
	absent := d.absent(seen, names, missing)
	if r.Live < r.Expected || r.Expected == 0 && len(problems) > 0 {
		r.Problem = problemText(problems, absent, names == nil, missing, now)
		r.Announced = missing <= 0 && drained == len(problems)
	}
	return r, absent
}

// problemText lists the problems of connections, the expected peers that are absent and, if the settings give
// a number instead of names, how many of the missing peers were never seen.
func problemText(problems []string, absent []AbsentPeer, number bool, missing int, now time.Time) string {
	for _, a := range absent {
		if a.Expected {
			problems = append(problems, a.text(now))
			missing--
		}
	}
	if number && missing > 0 {
		problems = append(problems, fmt.Sprintf("%d never seen", missing))
	}
	slices.Sort(problems)
	return strings.Join(problems, ", ")
}

// broken returns which stream of a live peer is missing, or "".
func broken(p *replicate.PeerStatus) string {
	switch {
	case p.Connected && p.Serving:
		return ""
	case p.Connected:
		return p.Node + " does not receive from this node"
	case p.Serving:
		return "no stream from " + p.Node
	}
	return "no streams with " + p.Node
}

// Ago returns a duration as text, in its two largest units: "14 s", "3 min 5 s", "2 h 10 min".
func Ago(d time.Duration) string {
	s := int64(max(d, 0).Round(time.Second) / time.Second)
	switch {
	case s < 60:
		return fmt.Sprintf("%d s", s)
	case s < 3600:
		return fmt.Sprintf("%d min %d s", s/60, s%60)
	case s < 86400:
		return fmt.Sprintf("%d h %d min", s/3600, s%3600/60)
	}
	return fmt.Sprintf("%d d %d h", s/86400, s%86400/3600)
}
