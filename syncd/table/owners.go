package table

import "strings"

// maxOwners bounds the interned owners. A node adds one each time it restarts,
// so only a peer that makes them up comes near.
const maxOwners = 1 << 16

// selfID is the OwnerID of Options.Self.
const selfID OwnerID = 0

type owners struct {
	ids  map[Owner]OwnerID
	list []ownerInfo
	// gone nodes left the cluster. Node names are kept beside the owners because
	// a node may be gone before any record of it arrives.
	gone map[string]bool
	// digester keeps a digest of each node.
	digester *digester
}

type ownerInfo struct {
	Owner
	ours   bool // this node, whichever incarnation
	gone   bool
	hash   uint64      // for digests
	digest *nodeDigest // of the node
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
	if len(o.list) == maxOwners {
		return NoOwner
	}
	// The caller's string may be a piece of a receive buffer.
	w.Node = strings.Clone(w.Node)
	id := OwnerID(len(o.list))
	ours := id == selfID || w.Node == o.list[selfID].Node
	o.list = append(o.list, ownerInfo{
		Owner: w, ours: ours, gone: o.gone[w.Node], hash: o.digester.owner(w), digest: o.digester.of(w.Node),
	})
	o.ids[w] = id
	return id
}

func (o *owners) bytes() uint64 {
	const perOwner = 24 + 40 + 64 // map entry, list entry, string
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

// SetGone records whether a node has left the cluster. Records of a node that
// is gone may be deleted by the local collector for everyone.
func (tx *Tx) SetGone(node string, gone bool) {
	o := &tx.t.owners
	if gone {
		o.gone[strings.Clone(node)] = true
	} else {
		delete(o.gone, node)
	}
	for i := range o.list {
		if o.list[i].Node == node {
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
