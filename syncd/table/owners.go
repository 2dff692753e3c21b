package table

import "strings"

// maxOwners limits the number of interned owners. ReclaimOwners frees the ids of owners without records.
const maxOwners = 1<<16 - 1

// maxNotLiveOwners limits the number of ids of owners that are not live. The remaining ids are reserved for
// this node and for nodes that membership has verified, with an equal share for each. A node that sends
// records in the name of many of its incarnations therefore uses no share of another node.
const maxNotLiveOwners = maxOwners / 2

// selfID is the OwnerID of Options.Self.
const selfID OwnerID = 0

// owners are the interned owners of a table. The lock of the table protects them.
type owners struct {
	// ids has the id of each owner in list that is not free.
	ids map[Owner]OwnerID
	// list has the owner of each id. Element selfID is Options.Self and is never freed.
	list []ownerInfo
	// gone has the names of the nodes that have left the cluster. It is separate from list because a node
	// may leave before any record of it arrives. See SetGone.
	gone map[string]bool
	// live has the nodes that are in the cluster, nil before the first SetMembers. seen has the nodes that
	// are or were in it, a superset of live. Neither includes this node unless SetMembers names it.
	live, seen map[string]bool
	// stopped has the nodes that owned records at the last stop of this node: see Options.Stop. It never changes.
	stopped map[string]bool
	// handovers has what nodes have handed over, without zero elements. It has nodes of seen and this node only.
	handovers map[string]Handover
	// returned is the last handover of this node that this incarnation has ended, at the wall clock returnedAt in nanoseconds.
	returned   Handover
	returnedAt int64
	// drained is true if handovers has this node.
	drained bool
	// groups has one group for each live node except this one.
	groups []*ownerGroup
	// otherOwners is the group of all owners whose node is not live, except this node's.
	otherOwners ownerGroup
	// freeIDs has the ids below len(list) that have no owner.
	freeIDs []OwnerID
	// reused is the number of ids that were given to another owner. It never decreases.
	reused uint64
	// keepIDs is true while a conversion copies the ids. Then no id is freed and no free id is used.
	keepIDs bool
	// digester keeps a digest of each node with an owner id. It never changes.
	digester *digester
}

// ownerInfo is the state of one owner. The zero value marks a free id.
type ownerInfo struct {
	// Owner is the interned owner. Its strings are copies.
	Owner
	// ours is true if the owner is this node, of any incarnation. It never changes.
	ours bool
	// gone is true if the node has left the cluster. It equals owners.gone of the node.
	gone bool
	// handedOver is the highest version of the owner's records that the node has handed over, 0: none. It follows from
	// owners.handovers.
	handedOver Version
	// leftAt is the wall clock in nanoseconds at which ObserveTakeover found that the node had left or handed over, or that
	// ended was true. It is 0 unless departed or ended is true.
	leftAt int64
	// unverified is true if the owner is another node that is not in owners.seen. It is false before the
	// first SetMembers. See unverified_owners.go.
	unverified bool
	// group is the group of the owner in a full kernel map. Nil: this node.
	group *ownerGroup
	// refs is the number of records with this owner. It is always 0 for selfID.
	refs uint32
	// superseding is the number of records with flagSuperseded that name this owner.
	superseding int
	// ended is true if a full sync of a later incarnation of the node has ended. See EndFullSync.
	ended bool
	// hash is the owner's hash for digests.
	hash uint64
	// digest is the digest of the owner's node, never nil unless the id is free.
	digest *nodeDigest
}

// init sets up owners with self as selfID.
func (o *owners) init(self Owner, d *digester) {
	o.digester = d
	o.ids = make(map[Owner]OwnerID)
	o.gone = make(map[string]bool)
	o.handovers = make(map[string]Handover)
	o.stopped = make(map[string]bool)
	o.intern(self)
}

// intern returns the id of an owner and gives a new owner an id. It returns NoOwner if no id is available.
func (o *owners) intern(w Owner) OwnerID {
	if id, ok := o.ids[w]; ok {
		return id
	}
	used := len(o.list) - len(o.freeIDs)
	if used == maxOwners || (used >= maxNotLiveOwners && o.live != nil && !o.reserved(w.Node)) {
		return NoOwner
	}
	// w.Node may be part of a receive buffer.
	w.Node = strings.Clone(w.Node)
	id := o.next()
	ours := id == selfID || w.Node == o.list[selfID].Node
	o.list[id] = o.describe(w, ours)
	o.list[id].digest.ids++
	o.ids[w] = id
	return id
}

// reserved reports whether a reserved id is available for a node. Ids below maxNotLiveOwners count towards the
// node's share, too.
func (o *owners) reserved(node string) bool {
	if !o.live[node] && node != o.list[selfID].Node {
		return false
	}
	d := o.digester.nodes[node]
	return d == nil || d.ids < (maxOwners-maxNotLiveOwners)/(len(o.live)+1)
}

// describe returns the state of a new owner without records.
func (o *owners) describe(w Owner, ours bool) ownerInfo {
	i := ownerInfo{Owner: w, ours: ours, gone: o.gone[w.Node], hash: o.digester.hashOwner(w), digest: o.digester.forNode(w.Node)}
	i.handedOver = o.handovers[w.Node].covered(w.Incarnation)
	o.assignGroup(&i)
	return i
}

// next returns an id without an owner.
func (o *owners) next() OwnerID {
	if n := len(o.freeIDs); n > 0 && !o.keepIDs {
		id := o.freeIDs[n-1]
		o.freeIDs = o.freeIDs[:n-1]
		o.reused++
		return id
	}
	o.list = append(o.list, ownerInfo{})
	return OwnerID(len(o.list) - 1)
}

// free reports whether the id has no owner.
func (o *ownerInfo) free() bool { return o.Owner == Owner{} }

// moveReference moves the reference of one record from one owner to another.
func (o *owners) moveReference(from, to OwnerID) {
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

// ReclaimOwners frees the ids of owners without records, and the digests of nodes without such ids. An id
// from Intern is valid until the next call, or as long as a record has the owner.
func (tx *Tx) ReclaimOwners() {
	o := &tx.t.owners
	if o.keepIDs {
		return
	}
	named := make(map[string]bool)
	for id := 1; id < len(o.list); id++ {
		w := &o.list[id]
		switch {
		case w.free():
		case w.refs > 0, w.superseding > 0:
			named[w.Node] = true
		default:
			w.digest.ids--
			delete(o.ids, w.Owner)
			*w = ownerInfo{}
			o.freeIDs = append(o.freeIDs, OwnerID(id))
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

// RecordOwners calls fn with each owner of records, tombstones included, in the order of the ids. It leaves out Options.Self.
func (tx *Tx) RecordOwners(fn func(Owner)) {
	for i := range tx.t.owners.list {
		if w := &tx.t.owners.list[i]; w.refs > 0 {
			fn(w.Owner)
		}
	}
}

// OwnersReused returns the number of ids that were given to another owner so far. Callers that keep data by
// id must discard it when the number changes.
func (tx *Tx) OwnersReused() uint64 { return tx.t.owners.reused }

// bytes returns the approximate memory of the owners in bytes.
func (o *owners) bytes() uint64 {
	const perOwner = 24 + 64 + 64 // map entry, list entry, string
	return uint64(len(o.list)) * perOwner
}

// Intern returns the id of an owner and gives a new owner an id. It returns NoOwner if the table cannot
// hold more owners. The string is copied.
func (tx *Tx) Intern(o Owner) OwnerID { return tx.t.owners.intern(o) }

// Owner returns the owner of an id from Intern or from a Record. It returns the zero Owner for any other
// id.
func (tx *Tx) Owner(id OwnerID) Owner {
	if int(id) >= len(tx.t.owners.list) {
		return Owner{}
	}
	return tx.t.owners.list[id].Owner
}

// SetGone sets which nodes have left the cluster (true) and which are back (false). Nodes that are absent
// from the map remain as they are. The local collector may delete the records of a node that has left, for
// all nodes. The map is borrowed for the call.
//
// A call visits each owner once, so callers should pass all nodes together.
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
			o.list[i].resetLeft()
		}
	}
	tx.t.noteDeparted(func(w *ownerInfo) bool { return nodes[w.Node] })
}

// ours reports whether an owner is this node, of any incarnation.
func (t *Table) ours(id OwnerID) bool { return t.owners.list[id].ours }

// SetMembers sets the nodes, other than this one, that membership has verified. live nodes are in the
// cluster; left nodes were in it earlier. Before the first call the table treats no owner as unverified,
// and all other owners form one group. The slices are borrowed for the call.
func (tx *Tx) SetMembers(live, left []string) {
	t := tx.t
	o := &t.owners
	o.live, o.seen = make(map[string]bool, len(live)), make(map[string]bool, len(live)+len(left))
	for _, node := range left {
		o.seen[node] = true
	}
	former := o.groups
	o.groups = nil
	for _, node := range live {
		o.live[node], o.seen[node] = true, true
		if node != o.list[selfID].Node {
			o.groups = append(o.groups, &ownerGroup{node: node})
		}
	}
	for _, h := range append(former, &o.otherOwners) {
		t.closeVictimCursor(h) // records may belong to another group now
	}
	o.forgetHandovers()
	for i := range o.list {
		if w := &o.list[i]; !w.free() {
			o.assignGroup(w)
		}
	}
}

// assignGroup sets the group of an owner, and whether it is unverified. It does nothing for owners of this
// node.
func (o *owners) assignGroup(w *ownerInfo) {
	if w.ours {
		return
	}
	w.group, w.unverified = &o.otherOwners, o.live != nil && !o.seen[w.Node]
	for _, h := range o.groups {
		if h.node == w.Node {
			w.group = h
		}
	}
}
