package daemon_test

import (
	"errors"
	"path/filepath"
	"slices"
	"testing"

	"mapsync/internal/poll"
	"mapsync/syncd/daemon"
)

// wantUse checks the text of an error about a name that does not exist.
func wantUse(t *testing.T, err error, want string) {
	t.Helper()
	if !errors.Is(err, daemon.ErrUse) || err.Error() != "wrong use: "+want {
		t.Errorf("error: got %v, want wrong use: %s", err, want)
	}
}

// Errors about unknown names list those that exist, and suggest a similar one.
func TestUnknownNames(t *testing.T) {
	dir := pinDir(t)
	sessions, services := filepath.Join(dir, "sessions"), filepath.Join(dir, "services")
	typed(t, sessions, keyV1, valueV1, 100)
	pinned(t, services, 8, 8, 100)
	n := newNode(t, 1, "sessions="+sessions, "services="+services)
	n.config.ExpectedPeers = []string{"balancer2", "balancer3"}
	n.start()
	poll.Eventually(t, "the node has the maps", func() bool { names, err := n.client.Names(t.Context()); return err == nil && len(names.Fields) == 2 })
	ctx := t.Context()
	entries := func(name string, where ...string) error {
		return n.client.Entries(ctx, name, daemon.EntryQuery{Where: where}, func(*daemon.Entry) error { return nil })
	}
	const maps = "these maps are replicated here: sessions, services"
	wantUse(t, entries("session"), `no such map "session": `+maps+` (did you mean sessions?)`)
	wantUse(t, entries("other"), `no such map "other": `+maps)
	_, err := n.client.Purge(ctx, "servces")
	wantUse(t, err, `no such map "servces": `+maps+` (did you mean services?)`)
	wantUse(t, n.client.Resync(ctx, "x", nil), `no such map "x": `+maps)
	wantUse(t, entries("sessions", "prt=80"), `filter "prt=80": unknown field "prt"; fields of this map: key.addr, key.port, key.zone, value.bytes, value.state (did you mean port?)`)
	err = n.client.Diff(ctx, "sessions", daemon.DiffQuery{Peer: "balancer1"}, nil)
	wantUse(t, err, `no such peer "balancer1": these are the peers of this node: balancer2, balancer3 (did you mean balancer2?)`)
	const owners = "no record and no known node has it, these are the owners: balancer2, balancer3"
	for _, force := range []bool{false, true} {
		_, err = n.client.Forget(ctx, "balancr3", "", force)
		wantUse(t, err, `no such owner "balancr3": `+owners+` (did you mean balancer3?)`)
	}
	_, err = n.client.Forget(ctx, "lb", "sessions", false)
	wantUse(t, err, `no such owner "lb": `+owners)
}

// An owner exists as long as a record or a tombstone has it, although this node does not know it as a node.
func TestForgetOfAnOwnerOfRecords(t *testing.T) {
	nodes, maps := threeNodes(t, 500, 500, 500)
	n1, n3 := nodes[0], nodes[2]
	n3.write(maps[2], 0, 10, 7)
	poll.Eventually(t, "all maps hold all entries", func() bool { return numberOf(t, maps[0]) == 10 && numberOf(t, maps[1]) == 10 })
	n3.stop()
	poll.Eventually(t, "n3 has left", func() bool { return len(n1.status().Peers) == 1 })
	n1.stop()
	n1.start()
	names := func() daemon.Names {
		n, err := n1.client.Names(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	poll.Eventually(t, "the node is ready, with the records of n3", func() bool { return n1.status().Ready && n1.ownedBy("n3") == 10 })
	if n := names(); slices.Contains(n.Peers, "n3") || !slices.Contains(n.Owners, "n3") {
		t.Errorf("names: got %+v, want n3 among the owners alone", n)
	}
	if done, err := n1.client.Forget(t.Context(), "n3", "", false); err != nil || len(done.Maps) != 1 || done.Maps[0].Records != 10 {
		t.Errorf("forget: got %+v, error %v, want 10 records", done, err)
	}
	if _, err := n1.client.Forget(t.Context(), "n3", "", false); !errors.Is(err, daemon.ErrUse) || slices.Contains(names().Owners, "n3") {
		t.Errorf("forget again: got error %v, owners %v, want ErrUse, without n3", err, names().Owners)
	}
}
