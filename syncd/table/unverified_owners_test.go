package table

import "testing"

// withMembers returns a table with the live nodes b and c, and the departed node d.
func withMembers(t *testing.T, change ...func(*Options)) *rig {
	r := newRig(t, change...)
	r.tab.Update(func(tx *Tx) { tx.SetMembers([]string{"b", "c"}, []string{"d"}) })
	return r
}

// TestUnverifiedOwnersDoNotReplaceLiveNodesRecords: the table accepts records of an owner that was never live
// only for keys that no live node holds. They replace no record of a live node.
func TestUnverifiedOwnersDoNotReplaceLiveNodesRecords(t *testing.T) {
	unverified, late := Owner{"x", 5}, Owner{"d", 5}
	for name, c := range map[string]struct {
		begin func(*rig)
		owner Owner
		value string
		opt   RemoteOptions
		want  Outcome
		state string
	}{
		"an unknown key":                  {func(*rig) {}, unverified, "w", RemoteOptions{}, Accepted, "w v5000 x5 dirty"},
		"a record of a live node":         {withRecord(peer, "v"), unverified, "w", RemoteOptions{}, Defended, "v v1000 b100"},
		"a delete by an unverified owner": {withRecord(peer, "v"), unverified, "-", RemoteOptions{}, Defended, "v v1000 b100"},
		"in a full sync":                  {withRecord(peer, "v"), unverified, "w", RemoteOptions{Touch: true}, Defended, "v v1000 b100"},
		"in a repair":                     {withRecord(peer, "v"), unverified, "w", RemoteOptions{Touch: true, Repair: true, Replace: ReplaceSameVersion}, Defended, "v v1000 b100"},
		"the owner sends it":              {withRecord(peer, "v"), unverified, "w", RemoteOptions{Sender: 1}, Accepted, "w v5000 x5 dirty"},
		"another live node sends it": {func(r *rig) {
			withRecord(peer, "v")(r)
			r.tab.Update(func(tx *Tx) { tx.Intern(other) })
		}, unverified, "w", RemoteOptions{Sender: 2}, Defended, "v v1000 b100"},
		"a record of this node":                              {withRecord(self, "v"), unverified, "w", RemoteOptions{}, Defended, "v v5001 a100"},
		"an unverified owner's delete of this node's record": {withRecord(self, "v"), unverified, "-", RemoteOptions{}, Defended, "v v5001 a100"},
		"a record of an earlier incarnation":                 {withRecord(older, "v"), unverified, "w", RemoteOptions{}, Defended, "v v5001 a100"},
		"a record of a departed node":                        {withRecord(late, "v"), unverified, "w", RemoteOptions{}, Accepted, "w v5000 x5 dirty"},
		"a record of an unverified owner":                    {withRecord(Owner{"y", 9}, "v"), unverified, "w", RemoteOptions{}, Accepted, "w v5000 x5 dirty"},
		"a deleted key":                                      {withRecord(peer, "-"), unverified, "w", RemoteOptions{}, Accepted, "w v5000 x5 dirty"},
		"an unversioned record":                              {func(r *rig) { r.load(Accepted, "k", "v") }, unverified, "w", RemoteOptions{}, Accepted, "w v5000 x5 dirty"},
		"departed over live":                                 {withRecord(peer, "v"), late, "w", RemoteOptions{}, Accepted, "w v5000 d5 dirty"},
		"older than a departed one": {func(r *rig) {
			withRecord(late, "v")(r)
			r.local(Accepted, 6000, "update k u packet 0")
		}, unverified, "w", RemoteOptions{}, Stale, "u v7000 a100"},
	} {
		t.Run(name, func(t *testing.T) {
			r := withMembers(t)
			c.begin(r)
			r.merge(c.want, 1, c.owner, 5000, "k", c.value, c.opt)
			r.want("k", c.state)
		})
	}
}

// withRecord creates an owner's record in the table and in the map.
func withRecord(o Owner, value string) func(*rig) {
	return func(r *rig) {
		if o == self {
			r.local(Accepted, 1000, "update k "+value+" packet 0")
			return
		}
		if value == "-" {
			r.remote(Accepted, 0, o, 900, "k", "v")
		}
		r.remote(Accepted, 0, o, 1000, "k", value)
		r.write()
	}
}

// TestExpiryByUnverifiedOwner: an unverified owner expires no record of a live node.
func TestExpiryByUnverifiedOwner(t *testing.T) {
	r := withMembers(t)
	withRecord(peer, "v")(r)
	r.do(Defended, func(tx *Tx) Outcome {
		return tx.Remote(&Delta{Key: pad("k", keySize), Version: 5000, Owner: tx.Intern(Owner{"x", 5}), Delete: true, Expired: true}, 1, RemoteOptions{})
	})
	r.want("k", "v v1000 b100")
}

// TestLateRecordOfEarlierIncarnation: a peer sends a record of an earlier incarnation of this node,
// later than this incarnation's start. The record takes over a key of a live node. This node keeps the
// content and sends it as its own, because other nodes may hold the takeover.
func TestLateRecordOfEarlierIncarnation(t *testing.T) {
	r := withMembers(t)
	withRecord(peer, "v")(r)
	r.remote(Defended, 1, older, 5000, "k", "w")
	r.want("k", "v v5001 a100")
	// The earlier incarnation may have written until this incarnation began.
	r.remote(Accepted, 1, peer, 50, "l", "v")
	r.remote(Accepted, 1, older, 100, "l", "w")
	r.want("l", "w v100 a90 dirty")
}

// TestEarlierIncarnationAfterAdoption: once the entries of the start are adopted, a record of an earlier incarnation of this
// node replaces no record of a live node, whatever its version. A new load of the map ends that until its entries are adopted.
func TestEarlierIncarnationAfterAdoption(t *testing.T) {
	r := withMembers(t)
	r.tab.Update(func(tx *Tx) { tx.BeginLoad() })
	r.load(Accepted, "k", "v")
	r.tab.Update(func(tx *Tx) {
		tx.EndLoad()
		tx.NoteOwner(pad("k", keySize), tx.Intern(peer), true)
	})
	for _, key := range []string{"l", "m", "n", "o", "p", "s"} {
		r.remote(Accepted, 1, peer, 50, key, "v")
	}
	r.remote(Accepted, 1, Owner{"d", 5}, 50, "q", "v")
	r.remote(Accepted, 1, older, 60, "l", "w") // while peers send the records of the earlier incarnation
	r.adopt()
	r.remote(Defended, 1, older, 60, "k", "w")
	r.want("k", "v v61 a100")
	r.remote(Defended, 1, older, 60, "m", "w")
	r.want("m", "v v61 a100 dirty")
	r.remote(Defended, 1, older, 60, "n", "-")
	r.want("n", "v v61 a100 dirty")
	r.remote(Stale, 1, older, 40, "o", "w")
	r.remote(Accepted, 1, older, 60, "q", "w")                          // the owner has departed
	r.merge(Accepted, 1, older, 60, "s", "w", RemoteOptions{Sender: 1}) // the owner itself has accepted the record
	r.want("s", "w v60 a90 dirty")
	r.tab.Update(func(tx *Tx) { tx.BeginLoad(); tx.EndLoad() })
	r.remote(Accepted, 1, older, 60, "p", "w")
	r.want("p", "w v60 a90 dirty")
}

// TestUnverifiedOwnerThatBecomesMember: membership proves a node after its records have arrived.
func TestUnverifiedOwnerThatBecomesMember(t *testing.T) {
	r := withMembers(t)
	withRecord(peer, "v")(r)
	r.remote(Defended, 1, Owner{"x", 5}, 5000, "k", "w")
	r.tab.Update(func(tx *Tx) { tx.SetMembers([]string{"b", "c", "x"}, nil) })
	r.remote(Accepted, 1, Owner{"x", 5}, 5000, "k", "w")
	r.want("k", "w v5000 x5 dirty")
	if n := r.tab.Stats().Defended; n != 1 {
		t.Errorf("defended records: got %d, want 1", n)
	}
	// Before SetMembers no owner counts as unverified.
	r = newRig(t)
	withRecord(peer, "v")(r)
	r.remote(Accepted, 1, Owner{"x", 5}, 5000, "k", "w")
}

// TestUnverifiedOwnerReplacesRecordOfDepartedNode: an unverified owner's record replaces a record of a departed node.
func TestUnverifiedOwnerReplacesRecordOfDepartedNode(t *testing.T) {
	r := withMembers(t)
	withRecord(peer, "v")(r)
	r.tab.Update(func(tx *Tx) { tx.SetMembers([]string{"c"}, []string{"b"}) })
	r.remote(Accepted, 1, Owner{"x", 5}, 5000, "k", "w")
}
