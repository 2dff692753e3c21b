package table

// A live peer may take over a key with a record that this node filters: its version is too far ahead of the clock, an
// interface is missing here, or a number does not fit. This node then has the former record, whose owner may be this node or
// one that has left. That record is superseded. A collector of this node must not end the entry, which the peer uses, and the
// entry must not expire after a takeover: the delete of the former record might be above the peer's, and this node would lack
// the entry if the peer left.
//
// A superseded record keeps its version and its owner, and is sent like others. It counts as one of a live peer for deletes by
// bpf(2), absences, evictions, new maps, takeover-expiry and purges. This ends when the record changes by this node, by a
// record of that peer or by a delete, when the peer leaves, and when a full sync of a later incarnation of the peer has ended.

// maxUndecoded is the highest number of keys in undecoded. Further ones are not noted.
const maxUndecoded = 4096

// undecoded has keys of records of live peers that this node has filtered because it cannot decode the key. All bits except
// for those of interfaces count. The lock of the table protects it.
type undecoded struct {
	keyHashes
	// peers has the element of each hash of keyHashes.
	peers map[uint64]undecodedKey
}

// undecodedKey is an element of undecoded.
type undecodedKey struct {
	// peer has the record. Names do not change, and the table may reuse ids.
	peer Owner
	// round is the number of the full sync of peer that contained the record, or after which it arrived.
	round int
}

// NoteSuperseded notes that a live peer has a record of a key, KeySize bytes, which this node has filtered. If the table has an
// older live record of another owner, it is superseded from now on.
func (tx *Tx) NoteSuperseded(key []byte, v Version, peer Owner) {
	t := tx.t
	if len(key) != t.opt.KeySize || peer.Node == t.opt.Self.Node || t.owners.gone[peer.Node] {
		return
	}
	_, s := t.find(key)
	if s == 0 || !t.meta(s).live() || t.meta(s).is(flagUnversioned) || t.meta(s).version > v || t.owners.list[t.meta(s).owner].Node == peer.Node {
		return
	}
	if id := t.owners.intern(peer); id != NoOwner {
		t.supersede(t.meta(s), id)
	}
}

// supersede marks a live record as superseded by a peer.
func (t *Table) supersede(m *meta, peer OwnerID) {
	t.endSuperseded(m)
	m.flags |= flagSuperseded
	m.cpuOrPeer = uint16(peer)
	t.owners.list[peer].superseding++
}

// endSuperseded removes the mark of a superseded record.
func (t *Table) endSuperseded(m *meta) {
	if m.is(flagSuperseded) {
		t.owners.list[m.cpuOrPeer].superseding--
		m.flags &^= flagSuperseded
		m.cpuOrPeer = cpuNone
	}
}

// superseding returns the peer of a superseded record, else nil. The peer may have left since.
func (t *Table) superseding(m *meta) *ownerInfo {
	if !m.is(flagSuperseded) {
		return nil
	}
	return &t.owners.list[m.cpuOrPeer]
}

// effective reports whether the records that the owner supersedes count as those of a live peer.
func (o *ownerInfo) effective() bool { return o != nil && !o.gone && !o.ended }

// usedByPeer reports whether a live peer has a newer record of the key than this one, which is not in the table.
func (t *Table) usedByPeer(s uint32) bool {
	if t.superseding(t.meta(s)).effective() {
		return true
	}
	k, found := t.findUndecoded(t.key(s))
	return found && !t.owners.gone[k.peer.Node]
}

// unusedByPeer returns since when no live peer uses the entry of a record, as wall clock in nanoseconds, since at the earliest. It
// returns 0 if one may use it.
func (t *Table) unusedByPeer(s uint32, since int64) int64 {
	p := t.superseding(t.meta(s))
	if _, found := t.findUndecoded(t.key(s)); found || p.effective() || p != nil && p.leftAt == 0 {
		return 0 // ObserveTakeover has yet to find that the peer has left
	}
	if p != nil {
		since = max(since, p.leftAt)
	}
	return since
}

// stampSuperseded keeps the mark of a record that gets the version of another owner only if a third node has sent it: the peer
// may have a newer one. The same holds for an entry of the local map of which peers have only named the owner. A step of the
// clock that lowers a version changes nothing. m has its former version, or 0 if its content has changed.
func (t *Table) stampSuperseded(m *meta, v Version, o OwnerID) {
	if m.is(flagNamed) && m.live() && o != selfID {
		t.supersede(m, m.owner)
	}
	if p := t.superseding(m); p != nil && (o == selfID && v > m.version || p.Node == t.owners.list[o].Node) {
		t.endSuperseded(m)
	}
}

// answersSuperseded ends the mark of a record if the peer itself has answered with a record that this node does not filter.
func (t *Table) answersSuperseded(d *Delta, m *meta, opt RemoteOptions) {
	p := t.superseding(m)
	if p == nil || !opt.Touch || p.Node != t.owners.list[d.Owner].Node {
		return
	}
	if opt.Sender == 0 || p.Node == t.owners.list[opt.Sender].Node {
		t.endSuperseded(m)
	}
}

// NoteUndecoded notes that a live peer has a record of a key, KeySize bytes, of which this node cannot decode the
// interfaces. Records with the same other bits count as superseded. round is the number of the latest full sync of the peer.
func (tx *Tx) NoteUndecoded(key []byte, peer Owner, round int) {
	t := tx.t
	u := &t.undecoded
	if len(key) != t.opt.KeySize || peer.Node == t.opt.Self.Node {
		return
	}
	if u.peers == nil {
		u.init(&t.opt, 0)
		u.peers = make(map[uint64]undecodedKey)
	}
	h := u.hash(key)
	if _, found := u.peers[h]; found || len(u.peers) < maxUndecoded {
		u.peers[h] = undecodedKey{peer, round}
	}
}

// findUndecoded returns the element of undecoded for a key.
func (t *Table) findUndecoded(key []byte) (k undecodedKey, found bool) {
	if len(t.undecoded.peers) == 0 {
		return k, false
	}
	k, found = t.undecoded.peers[t.undecoded.hash(key)]
	return k, found
}

// forgetUndecoded removes elements of undecoded. Entries do not expire after a takeover before the time has passed anew.
func (t *Table) forgetUndecoded(fn func(undecodedKey) bool) {
	for h, k := range t.undecoded.peers {
		if fn(k) {
			delete(t.undecoded.peers, h)
			t.takeover.since = 0
		}
	}
}

// EndFullSync notes that the full sync with the number round has ended. Only the keys that it has shown count from now on, without
// those of earlier full syncs or incarnations of the peer: see NoteSuperseded and NoteUndecoded.
func (tx *Tx) EndFullSync(peer Owner, round int) {
	t := tx.t
	for i := range t.owners.list {
		if o := &t.owners.list[i]; o.Node == peer.Node && o.Incarnation < peer.Incarnation {
			o.ended = true
		}
	}
	t.forgetUndecoded(func(k undecodedKey) bool {
		return k.peer.Node == peer.Node && (k.peer.Incarnation < peer.Incarnation || k.peer == peer && k.round < round)
	})
}

// lastCPU returns the CPU of the newest evidence, or cpuNone.
func (m *meta) lastCPU() uint16 {
	if m.is(flagSuperseded) {
		return cpuNone
	}
	return m.cpuOrPeer
}

// setCPU sets the CPU of the newest evidence. That of a superseded record stays cpuNone.
func (m *meta) setCPU(cpu uint16) {
	if !m.is(flagSuperseded) {
		m.cpuOrPeer = cpu
	}
}
