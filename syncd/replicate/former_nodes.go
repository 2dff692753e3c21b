package replicate

import (
	"log/slog"
	"maps"
	"slices"
	"time"

	"mapsync/syncd/table"
)

// recordsPerLock bounds the records that one Update visits.
const recordsPerLock = 1024

// maxLoggedOwners bounds the owners in one log line.
const maxLoggedOwners = 5

// setGone records which nodes are gone (true) and which are back or forgotten (false). The caller
// holds r.mu.
//
// Any node may delete the records of a gone node, and digests count them as orphaned. goneAt and
// unverifiedAt keep the tombstones for their whole lifetime, because such a node may return with old
// records: see acknowledge_tombstones.go.
func (r *Replicator) setGone(nodes map[string]bool) {
	if len(nodes) == 0 {
		return
	}
	// A node that was never live has no time of departure: peers can invent its name, so only the
	// latest of these times is stored.
	now := time.Now()
	for node, gone := range nodes {
		switch {
		case !gone:
			delete(r.gone, node)
			continue
		case !r.everLive[node]:
			r.unverifiedAt = now
		// The first departure counts. A node that is still away must not extend it.
		case r.goneAt[node].IsZero():
			r.goneAt[node] = now
		}
		r.gone[node] = true
	}
	for _, m := range r.localMaps() {
		m.table.Update(func(tx *table.Tx) { tx.SetGone(nodes) })
	}
}

// reviewOwners marks owners as gone that were never live: they left before this node started, and
// no node may delete their records until they count as gone. It also forgets the names of nodes
// that are gone and own no records. The caller holds r.mu.
//
// doHousekeeping calls it once in ownerReviewInterval, and not before Options.UnknownGrace has
// passed since the first SetPeers.
func (r *Replicator) reviewOwners() {
	v, owners := r.view.Load(), make(map[string]bool)
	for _, m := range r.localMaps() {
		for _, node := range m.owners() {
			owners[node] = true
		}
	}
	// Owners that were never live count as gone after Options.UnknownGrace.
	moved, unverified := make(map[string]bool), []string(nil)
	for node := range owners {
		// This includes nodes that left before this node started, and names that a peer has
		// invented.
		if v.orphaned(node) && !r.gone[node] {
			moved[node] = true
			unverified = append(unverified, node)
		}
	}
	// A gone node without records need not be stored: it can be found again with its next record.
	for node := range r.gone {
		if !owners[node] {
			moved[node] = false
		}
	}
	r.setGone(moved)
	r.logUnverifiedOwners(unverified)
	// everLive stays bounded by the owners, the live nodes and goneAt.
	known := len(r.everLive)
	maps.DeleteFunc(r.everLive, func(node string, _ bool) bool {
		return v.orphaned(node) && !owners[node] && r.goneAt[node].IsZero()
	})
	if len(r.everLive) < known {
		r.setMembers()
	}
}

// logUnverifiedOwners logs owners that were never live, in one line, because peers can name any number of
// them. nodes is sorted in place.
func (r *Replicator) logUnverifiedOwners(nodes []string) {
	if len(nodes) == 0 {
		return
	}
	slices.Sort(nodes)
	r.opt.Logger.Info("owners of records were never seen, treating records as orphaned",
		slog.Int("owners", len(nodes)), slog.Any("peers", nodes[:min(len(nodes), maxLoggedOwners)]))
}

// forgetDepartures removes the nodes from goneAt that left longer ago than the longest TombstoneTTL
// of all maps. The caller holds Replicator.mu.
func (r *Replicator) forgetDepartures(now time.Time) {
	longest := time.Duration(0)
	for _, m := range r.localMaps() {
		longest = max(longest, m.table.TombstoneTTL())
	}
	maps.DeleteFunc(r.goneAt, func(_ string, at time.Time) bool { return now.Sub(at) >= longest })
}
