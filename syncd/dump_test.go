package main

import (
	"bytes"
	"encoding/json"
	"testing"

	"mapsync/syncd/daemon"
)

func TestEntriesArePrinted(t *testing.T) {
	key, value := json.RawMessage(`"{port 80}"`), json.RawMessage(`"{state 1}"`)
	for want, e := range map[string]daemon.Entry{
		"{port 80} {state 1} owner=lb1 changed=unknown pending\n": {Key: key, Value: value, Owner: "lb1", Pending: true},
		"{port 80} deleted owner=lb1 changed=unknown\n":           {Key: key, Owner: "lb1", Deleted: true},
		"{port 80} expired owner=lb1 changed=unknown\n":           {Key: key, Owner: "lb1", Deleted: true, Expired: true},
	} {
		var out bytes.Buffer
		if err := printEntry(&out, &e); err != nil || out.String() != want {
			t.Errorf("print entry: error %v, got %q, want %q", err, out.String(), want)
		}
	}
}
