package replicate

import (
	"testing"

	"mapsync/syncd/table"
)

// TestFormerNodeWithRecordsStaysGone checks that further reviews keep a former node while it owns
// records, also after its departure has been forgotten.
func TestFormerNodeWithRecordsStaysGone(t *testing.T) {
	r, tb := newTestReplicator(t)
	r.SetPeers([]Peer{peerX(5)})
	r.everLive["z"] = true
	enterRemote(tb, table.Owner{Node: "z", Incarnation: 1}, 5, 1)
	for i := range 3 {
		r.reviewOwners()
		if !r.gone["z"] || !r.everLive["z"] {
			t.Errorf("review %d: got gone %t, ever live %t, want true and true", i+1, r.gone["z"], r.everLive["z"])
		}
		delete(r.goneAt, "z")
	}
}
