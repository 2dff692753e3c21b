package table

import "testing"

// TestSecondHandRecords checks that a record of a live node from another peer replaces no record of a live node or
// of this node, whatever its version, and that the owner itself replaces what others have sent in its name.
func TestSecondHandRecords(t *testing.T) {
	second := RemoteOptions{SecondHand: true}
	for name, c := range map[string]struct {
		begin func(*rig)
		value string
		want  Outcome
		state string
	}{
		"an unknown key":                 {func(*rig) {}, "w", Accepted, "w v5000 b100 dirty"},
		"an unversioned record":          {func(r *rig) { r.load(Accepted, "k", "v") }, "w", Accepted, "w v5000 b100 dirty"},
		"a record of its owner":          {withRecord(peer, "v"), "w", Stale, "v v1000 b100"},
		"a delete":                       {withRecord(peer, "v"), "-", Stale, "v v1000 b100"},
		"a record of another live node":  {withRecord(other, "v"), "w", Stale, "v v1000 c100"},
		"a deleted key":                  {withRecord(peer, "-"), "w", Stale, "- v1000 b100"},
		"a record of this node":          {withRecord(self, "v"), "w", Stale, "v v1000 a100"},
		"an earlier record of this node": {withRecord(older, "v"), "w", Stale, "v v1000 a90"},
		"a record of a departed node":    {withRecord(Owner{"d", 5}, "v"), "w", Accepted, "w v5000 b100 dirty"},
	} {
		t.Run(name, func(t *testing.T) {
			r := withMembers(t)
			c.begin(r)
			r.merge(c.want, 1, peer, 5000, "k", c.value, second)
			r.want("k", c.state)
		})
	}
	r := withMembers(t)
	r.merge(Accepted, 1, peer, 5000, "k", "forged", second)
	r.merge(Accepted, 1, peer, 1000, "k", "v", RemoteOptions{Replace: ReplaceAnyVersion})
	r.want("k", "v v1000 b100 dirty")
}
