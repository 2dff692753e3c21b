package table

import "strings"

// maxOwners bounds the interned owners. An id is used again once no record names its owner.
const maxOwners = 1<<16 - 1

// maxStrangers bounds the ids of owners that are not live: the others are for nodes that
// membership has proven.
const maxStrangers = maxOwners / 2

// selfID is the OwnerID of Options.Self.
const selfID OwnerID = 0

type owners struct {
	ids  map[Owner]OwnerID
	list []ownerInfo
	// gone nodes left the cluster. Node names are kept beside the owners because
	// a node may be gone before any record of it arrives.
	gone map[string]bool
	// live are the nodes that membership has, nil if that was never set. seen are those that it has
	// or had. See SetMembers.
	live, seen map[string]bool
	// holders has one holder for each live node, departed is the holder of all other owners.
	holders  []*holder
	departed holder
	// spare are the ids below len(list) that no owner has.
	spare []OwnerID
	// reused counts ids that were given to another owner.
	reused uint64
	// keep: ids are not reclaimed, because a conversion copies them.
	keep bool
	// digester keeps a digest of each node.
	digester *digester
}

type ownerInfo struct {
	Owner
	ours     bool // this node, whichever incarnation
	gone     bool
	stranger bool        // another node, which was never live. See strangers.go
	holder   *holder     // nil: this node
	refs     uint32      // records with this owner; not counted for selfID
	hash     uint64      // for digests
	digest   *nodeDigest // of the node
}

func (o *owners) init(self Owner, d *digester) {
	o.digester = d
	o.ids = make(map[Owner]OwnerID)
	o.gone = make(map[string]bool)
	o.intern(self)
}

func (o *owners) intern(w Owner) OwnerID {
	if id, ok := o.ids[w]; ok {
		return id
	}
	used := len(o.list) - len(o.spare)
	if used == maxOwners || (used >= maxStrangers && o.live != nil && !o.live[w.Node]) {
		return NoOwner
	}
	// The caller's string may be a piece of a receive buffer.
	w.Node = strings.Clone(w.Node)
	id := o.next()
	ours := id == selfID || w.Node == o.list[selfID].Node
	o.list[id] = o.describe(w, ours)
	o.ids[w] = id
	return id
}

func (o *owners) describe(w Owner, ours bool) ownerInfo {
	i := ownerInfo{Owner: w, ours: ours, gone: o.gone[w.Node], hash: o.digester.owner(w), digest: o.digester.of(w.Node)}
	o.place(&i)
	return i
}

// next returns an id that no owner has.
func (o *owners) next() OwnerID {
	if n := len(o.spare); n > 0 && !o.keep {
		id := o.spare[n-1]
		o.spare = o.spare[:n-1]
		o.reused++
		return id
	}
	o.list = append(o.list, ownerInfo{})
	return OwnerID(len(o.list) - 1)
}

func (o *ownerInfo) free() bool { return o.Owner == Owner{} }

// refer moves a record's reference from one owner to another.
func (o *owners) refer(from, to OwnerID) {
	if from == to {
		return
	}
	if from != selfID {
		o.list[from].refs--
	}
	if to != selfID {
		o.list[to].refs++
	}
}

// ReclaimOwners gives the ids of owners back that no record names any more, and their digests.
// An id from Intern is valid until the next call, unless a record names its owner.
func (tx *Tx) ReclaimOwners() {
	o := &tx.t.owners
	if o.keep {
		return
	}
	named := make(map[string]bool)
	for id := 1; id < len(o.list); id++ {
		w := &o.list[id]
		switch {
		case w.free():
		case w.refs > 0:
			named[w.Node] = true
		default:
			delete(o.ids, w.Owner)
			*w = ownerInfo{}
			o.spare = append(o.spare, OwnerID(id))
		}
	}
	for node := range o.digester.nodes {
		if !named[node] && node != o.list[selfID].Node {
			delete(o.digester.nodes, node)
		}
	}
}

// Owners calls fn with each owner that has an id, in the order of the ids.
func (tx *Tx) Owners(fn func(Owner)) {
	for i := range tx.t.owners.list {
		if w := &tx.t.owners.list[i]; !w.free() {
			fn(w.Owner)
		}
	}
}

// OwnersReused returns how many ids were given to another owner so far. Data kept by id is void
// when it changes.
func (tx *Tx) OwnersReused() uint64 { return tx.t.owners.reused }

func (o *owners) bytes() uint64 {
	const perOwner = 24 + 64 + 64 // map entry, list entry, string
	return uint64(len(o.list)) * perOwner
}

// Intern returns the id of an owner, giving it one if it is new. It returns
// NoOwner when the table holds as many owners as it can.
func (tx *Tx) Intern(o Owner) OwnerID { return tx.t.owners.intern(o) }

// Owner returns the owner of an id that Intern or a Record gave out, and the
// zero Owner for any other.
func (tx *Tx) Owner(id OwnerID) Owner {
	if int(id) >= len(tx.t.owners.list) {
		return Owner{}
	}
	return tx.t.owners.list[id].Owner
}

// SetGone records which nodes have left the cluster (true) and which are back (false).
// Nodes that are absent from the map remain as they are. Records of a node that is gone may
// be deleted by the local collector for everyone. The map is not kept.
//
// A call visits each owner once, so callers pass all nodes together.
func (tx *Tx) SetGone(nodes map[string]bool) {
	o := &tx.t.owners
	for node, gone := range nodes {
		if gone {
			o.gone[strings.Clone(node)] = true
		} else {
			delete(o.gone, node)
		}
	}
	for i := range o.list {
		if gone, ok := nodes[o.list[i].Node]; ok {
			o.list[i].gone = gone
		}
	}
}

func (t *Table) ours(id OwnerID) bool { return t.owners.list[id].ours }

// beats reports whether a delta's version and owner are above those of a
// record. Where both are equal a tombstone is above a live record: Sweep makes
// such a pair.
func (t *Table) beats(d *Delta, m *meta) bool {
	switch {
	case d.Version != m.version:
		return d.Version > m.version
	case d.Owner != m.owner:
		return t.owners.list[d.Owner].Compare(t.owners.list[m.owner].Owner) > 0
	default:
		return d.Delete && m.live()
	}
}
