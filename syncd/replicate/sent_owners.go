package replicate

import (
	"fmt"
	"slices"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/replicate/wire"
	"mapsync/syncd/table"
)

// A sender sends its own records, and the records of earlier incarnations of the receiver. The
// receiver requests all other records, for each map: only the receiver can determine from which
// peers it receives that map.

// maxRequested bounds the live nodes in a request.
const maxRequested = 64

// ownerRequest is a request for records of other owners. It does not change.
type ownerRequest struct {
	// serial numbers the requests of a subscription; each is higher than the one before. 0: no request.
	serial uint64
	// orphaned requests orphaned records.
	orphaned bool
	// nodes are the live nodes whose records are requested, sorted, at most maxRequested.
	nodes []string
	// resend requests records again that were sent under the previous request.
	resend bool
	// token is the token of the last OwnersSent that the receiver got, if the subscription
	// resumes; else 0.
	token uint64
}

// allOrphaned is the request that applies to a receiver that sends none.
var allOrphaned = &ownerRequest{orphaned: true}

// readOwners checks and returns a request. The errors wrap errProtocol.
func readOwners(m *mapsyncv1.OwnerRequest) (*ownerRequest, error) {
	if m == nil {
		return allOrphaned, nil
	}
	q := &ownerRequest{
		serial: m.GetSerial(), orphaned: m.GetOrphaned(), nodes: slices.Clone(m.GetNodes()),
		resend: m.GetResend(), token: m.GetToken(),
	}
	if len(q.nodes) > maxRequested {
		return nil, fmt.Errorf("request the records of %d nodes, more than %d: %w", len(q.nodes), maxRequested, errProtocol)
	}
	for _, node := range q.nodes {
		if err := wire.CheckName(node); err != nil {
			return nil, fmt.Errorf("request records: %w: %w", errProtocol, err)
		}
	}
	// includes uses a binary search.
	slices.Sort(q.nodes)
	return q, nil
}

// coverage is a request under a view. It determines which records of other owners are sent. The
// zero coverage includes none. A coverage does not change.
type coverage struct {
	// view is the membership that decides which owners are live and which are orphaned; nil:
	// zero coverage.
	view *view
	// request is the request that the coverage answers; nil only if view is nil.
	request *ownerRequest
}

// includes reports whether the records of an owner are sent. The owner is neither the sender nor
// the receiver.
func (c coverage) includes(node string) bool {
	if c.view == nil {
		return false
	}
	if c.request.orphaned && c.view.orphaned(node) {
		return true
	}
	_, found := slices.BinarySearch(c.request.nodes, node)
	return found
}

// sends reports whether this node sends the records of an owner to a target.
func (c coverage) sends(owner, target table.Owner) bool {
	switch owner.Node {
	case target.Node:
		return owner != target // any peer may be the only node with the last records
	case c.view.self.Node:
		return true
	}
	return c.includes(owner.Node)
}

// exceeds reports whether a coverage may include owners that an older one does not include.
func (c coverage) exceeds(old coverage) bool {
	// The zero coverage includes no owners.
	if old.view == nil {
		return c.request.orphaned || len(c.request.nodes) > 0
	}
	if c.request.orphaned && (!old.request.orphaned || c.view.departures != old.view.departures) {
		return true
	}
	return slices.ContainsFunc(c.request.nodes, func(node string) bool { return !old.includes(node) })
}
