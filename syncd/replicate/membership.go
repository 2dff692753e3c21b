package replicate

import (
	"sync"

	"mapsync/syncd/table"
)

// view is the membership of one moment. It does not change; streams read it
// while they hold a table's lock, so that what is moved to a tail after a new
// view is met under that view.
type view struct {
	epoch uint64
	self  string
	live  map[string]Peer // other than self
	// survivor is the live node that started first, self included: one that joins is
	// told by it, and does not take its place.
	survivor string
}

func newView(epoch uint64, self table.Owner, live []Peer) *view {
	v := &view{epoch: epoch, self: self.Node, live: make(map[string]Peer, len(live))}
	for _, p := range live {
		// Of two lives of one node the later counts.
		if old, ok := v.live[p.Node]; p.Node != self.Node && (!ok || old.Incarnation < p.Incarnation) {
			v.live[p.Node] = p
		}
	}
	first := self
	for _, p := range v.live {
		if p.Incarnation < first.Incarnation || (p.Incarnation == first.Incarnation && p.Node < first.Node) {
			first = p.owner()
		}
	}
	v.survivor = first.Node
	return v
}

// covers reports whether this node streams the records of an owner to the
// target although they are not its own.
//
// What an earlier life of the target owned, everyone tells it: any one of them
// may be the only one that received the last of it.
//
// What an owner that is gone left behind, everyone tells the survivor (the live
// node that started first), and the survivor tells everyone. So each record
// that anyone has reaches all, and all but the survivor receive it once.
func (v *view) covers(owner, target string) bool {
	if _, live := v.live[owner]; owner == v.self || live || owner == target {
		return owner == target
	}
	return v.survivor == v.self || v.survivor == target
}

// serves reports whether this node streams the records of an owner to a target.
func (v *view) serves(owner, target table.Owner) bool {
	if owner == target {
		return false
	}
	return owner.Node == v.self || v.covers(owner.Node, target.Node)
}

// takesOver reports whether this view makes the node responsible for records of the owner
// that a stream to the target may have passed under the old view, nil for an unknown one.
func (v *view) takesOver(old *view, owner, target string) bool {
	return v.covers(owner, target) && (old == nil || !old.covers(owner, target))
}

// passed remembers under which view the stream to each peer went on last. A peer that
// comes back resumes where it was, and who told what may have changed meanwhile.
type passed struct {
	mu    sync.Mutex
	views map[string]passedView // by node
}

type passedView struct {
	incarnation uint64
	view        *view
}

// maxPassed bounds the peers remembered. To forget one costs telling it some records again.
const maxPassed = 1024

func (p *passed) note(target table.Owner, v *view) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.views == nil || len(p.views) >= maxPassed {
		p.views = make(map[string]passedView)
	}
	p.views[target.Node] = passedView{target.Incarnation, v}
}

// last returns the view, nil if none is remembered of this life of the peer.
func (p *passed) last(target table.Owner) *view {
	p.mu.Lock()
	defer p.mu.Unlock()
	if was := p.views[target.Node]; was.incarnation == target.Incarnation {
		return was.view
	}
	return nil
}
