package main

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	"mapsync/syncd/daemon"
)

func TestDifferencesArePrintedWithBothSides(t *testing.T) {
	at := time.Date(2026, 11, 21, 7, 0, 0, 0, time.UTC)
	side := func(value, owner string) *daemon.DiffSide {
		return &daemon.DiffSide{Value: json.RawMessage(`"` + value + `"`), Owner: owner, Changed: at}
	}
	key := json.RawMessage(`"{port 80}"`)
	for want, e := range map[string]daemon.DiffEntry{
		"{port 80} peer=lb2 only_there\n    here:  nothing\n    there: {state 1} owner=lb2 changed=2026-11-21T07:00:00Z\n": {
			Peer: "lb2", Key: key, Kind: daemon.DiffOnlyThere, There: side("{state 1}", "lb2"),
		},
		"{port 80} peer=lb2 newer_here\n    here:  deleted owner=lb1 changed=2026-11-21T07:00:00Z\n    there: {state 1} owner=lb2 changed=2026-11-21T07:00:00Z\n": {
			Peer: "lb2", Key: key, Kind: daemon.DiffNewerHere, Here: &daemon.DiffSide{Deleted: true, Owner: "lb1", Changed: at}, There: side("{state 1}", "lb2"),
		},
		"peer lb3: no such map\n":          {Peer: "lb3", Error: "no such map"},
		"not compared: no peer is alive\n": {Error: "not compared: no peer is alive"},
		"{port 81} peer=lb2 refused_there\n    reason: value does not fit\n": {
			Peer: "lb2", Entry: "{port 81}", Kind: daemon.DiffRefusedPeer, Reason: "value does not fit",
		},
		"peer lb2: compared, nothing differs, 4 changes are under way\n": {Peer: "lb2", Summary: &daemon.DiffResult{UnderWay: 4}},
		"peer lb2: 2 entries differ, 3 entries do not go into the peer's kernel map\n": {
			Peer: "lb2", Summary: &daemon.DiffResult{Differ: 2, NotHeld: 3},
		},
		"peer lb2: 3 entries of the peer do not go into the kernel map of this node\n": {
			Peer: "lb2", Summary: &daemon.DiffResult{NotHeldHere: 3},
		},
	} {
		var out bytes.Buffer
		if err := printDifference(&out, &e); err != nil || out.String() != want {
			t.Errorf("print difference: error %v, got %q, want %q", err, out.String(), want)
		}
	}
	if err := printDifference(&bytes.Buffer{}, &daemon.DiffEntry{Key: json.RawMessage(`{}`)}); err == nil {
		t.Error("print difference with a JSON object as key: got no error, want one")
	}
}
