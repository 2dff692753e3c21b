package table

import "testing"

// withMembers returns a table with the live nodes b and c, and d that has left.
func withMembers(t *testing.T, change ...func(*Options)) *rig {
	r := newRig(t, change...)
	r.tab.Update(func(tx *Tx) { tx.SetMembers([]string{"b", "c"}, []string{"d"}) })
	return r
}

// TestStrangersDoNotReplaceLiveNodesRecords: records of an owner that was never live are accepted for
// keys that no live node holds, and replace no record of a live node.
func TestStrangersDoNotReplaceLiveNodesRecords(t *testing.T) {
	stranger, late := Owner{"x", 5}, Owner{"d", 5}
	for name, c := range map[string]struct {
		begin func(*rig)
		owner Owner
		value string
		opt   RemoteOptions
		want  Outcome
		state string
	}{
		"an unknown key":            {func(*rig) {}, stranger, "w", RemoteOptions{}, Accepted, "w v5000 x5 dirty"},
		"another live node's":       {held(peer, "v"), stranger, "w", RemoteOptions{}, Defended, "v v1000 b100"},
		"a delete of a live node's": {held(peer, "v"), stranger, "-", RemoteOptions{}, Defended, "v v1000 b100"},
		"in a full sync":            {held(peer, "v"), stranger, "w", RemoteOptions{Touch: true}, Defended, "v v1000 b100"},
		"in a repair":               {held(peer, "v"), stranger, "w", RemoteOptions{Touch: true, Repair: true, Replace: ReplaceSame}, Defended, "v v1000 b100"},
		"the owner sends it":        {held(peer, "v"), stranger, "w", RemoteOptions{Sender: 1}, Accepted, "w v5000 x5 dirty"},
		"another live node sends it": {func(r *rig) {
			held(peer, "v")(r)
			r.tab.Update(func(tx *Tx) { tx.Intern(other) })
		}, stranger, "w", RemoteOptions{Sender: 2}, Defended, "v v1000 b100"},
		"this node's":                         {held(self, "v"), stranger, "w", RemoteOptions{}, Defended, "v v5001 a100"},
		"this node's, a delete":               {held(self, "v"), stranger, "-", RemoteOptions{}, Defended, "v v5001 a100"},
		"of an earlier incarnation":           {held(older, "v"), stranger, "w", RemoteOptions{}, Defended, "v v5001 a100"},
		"a departed node's":                   {held(late, "v"), stranger, "w", RemoteOptions{}, Accepted, "w v5000 x5 dirty"},
		"another stranger's":                  {held(Owner{"y", 9}, "v"), stranger, "w", RemoteOptions{}, Accepted, "w v5000 x5 dirty"},
		"a deleted key":                       {held(peer, "-"), stranger, "w", RemoteOptions{}, Accepted, "w v5000 x5 dirty"},
		"an unversioned one":                  {func(r *rig) { r.load(Accepted, "k", "v") }, stranger, "w", RemoteOptions{}, Accepted, "w v5000 x5 dirty"},
		"a departed node's over a live one's": {held(peer, "v"), late, "w", RemoteOptions{}, Accepted, "w v5000 d5 dirty"},
		"an older one of a departed node": {func(r *rig) {
			held(late, "v")(r)
			r.local(Accepted, 6000, "update k u packet 0")
		}, stranger, "w", RemoteOptions{}, Stale, "u v7000 a100"},
	} {
		t.Run(name, func(t *testing.T) {
			r := withMembers(t)
			c.begin(r)
			r.merge(c.want, 1, c.owner, 5000, "k", c.value, c.opt)
			r.want("k", c.state)
		})
	}
}

// held has an owner's record in table and map.
func held(o Owner, value string) func(*rig) {
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

// TestStrangerExpiry: a stranger expires no record of a live node.
func TestStrangerExpiry(t *testing.T) {
	r := withMembers(t)
	held(peer, "v")(r)
	r.do(Defended, func(tx *Tx) Outcome {
		return tx.Remote(&Delta{Key: pad("k", simKey), Version: 5000, Owner: tx.Intern(Owner{"x", 5}), Delete: true, Expired: true}, 1, RemoteOptions{})
	})
	r.want("k", "v v1000 b100")
}

// TestEarlierIncarnationAfterItsEnd: a peer sends a takeover of a live node's key by an earlier
// incarnation of this node, later than this incarnation's start. This node keeps the content and sends
// it as its own, since other nodes may hold the takeover.
func TestEarlierIncarnationAfterItsEnd(t *testing.T) {
	r := withMembers(t)
	held(peer, "v")(r)
	r.remote(Defended, 1, older, 5000, "k", "w")
	r.want("k", "v v5001 a100")
	// The earlier incarnation may have written until this one began.
	r.remote(Accepted, 1, peer, 50, "l", "v")
	r.remote(Accepted, 1, older, 100, "l", "w")
	r.want("l", "w v100 a90 dirty")
}

// TestStrangersThatBecomeKnown: membership proves a node later than its records arrive.
func TestStrangersThatBecomeKnown(t *testing.T) {
	r := withMembers(t)
	held(peer, "v")(r)
	r.remote(Defended, 1, Owner{"x", 5}, 5000, "k", "w")
	r.tab.Update(func(tx *Tx) { tx.SetMembers([]string{"b", "c", "x"}, nil) })
	r.remote(Accepted, 1, Owner{"x", 5}, 5000, "k", "w")
	r.want("k", "w v5000 x5 dirty")
	if n := r.tab.Stats().Defended; n != 1 {
		t.Errorf("%d records were defended", n)
	}
	// Without any membership there are no strangers.
	r = newRig(t)
	held(peer, "v")(r)
	r.remote(Accepted, 1, Owner{"x", 5}, 5000, "k", "w")
}

// TestOwnerThatIsLiveNoLonger: a stranger's record replaces one of a node that has left.
func TestOwnerThatIsLiveNoLonger(t *testing.T) {
	r := withMembers(t)
	held(peer, "v")(r)
	r.tab.Update(func(tx *Tx) { tx.SetMembers([]string{"c"}, []string{"b"}) })
	r.remote(Accepted, 1, Owner{"x", 5}, 5000, "k", "w")
}
