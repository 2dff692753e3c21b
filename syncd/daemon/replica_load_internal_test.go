package daemon

import (
	"context"
	"testing"
	"time"

	"mapsync/syncd/kmap"
	"mapsync/syncd/table"

	"github.com/cilium/ebpf"
)

// A map that returns and cannot be read at the first attempt is still the same map. An entry that
// the daemon once wrote there for a peer is not a change of its load balancer.
func TestFailedRescanIsRetried(t *testing.T) {
	raw, err := ebpf.NewMap(&ebpf.MapSpec{Name: "ct", Type: ebpf.Hash, KeySize: 8, ValueSize: 8, MaxEntries: 10})
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	k, err := kmap.Open(raw, kmap.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	tb, err := table.New(table.Options{Self: table.Owner{Node: "a", Incarnation: 1}, KeySize: 8, ValueSize: 8})
	if err != nil {
		t.Fatal(err)
	}
	m := &replica{daemon: &Daemon{clock: newClock(time.Now, monotonic)}}
	load := func(ctx context.Context) error {
		_, err := m.load(ctx, k, tb)
		return err
	}
	if err := load(t.Context()); err != nil {
		t.Fatal(err)
	}
	m.wasOffered, m.offered = true, tb
	key, older, newer := []byte("session1"), []byte("older000"), []byte("newer000")
	merge := func(v table.Version, value []byte) {
		tb.Update(func(tx *table.Tx) {
			d := table.Delta{Key: key, Value: value, Version: v, Owner: tx.Intern(table.Owner{Node: "b", Incarnation: 1})}
			if o := tx.Remote(&d, 1, table.RemoteOptions{}); o != table.Accepted {
				t.Errorf("merge a record of the peer: got %s, want accepted", o)
			}
		})
	}
	merge(1, older)
	if err := raw.Put(key, older); err != nil { // the syncer wrote this
		t.Fatal(err)
	}
	merge(2, newer) // while the map is absent
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := load(gone); err == nil {
		t.Fatal("load with a cancelled context: got no error, want one")
	}
	if err := load(t.Context()); err != nil {
		t.Fatal(err)
	}
	tb.View(func(tx *table.Tx) {
		var rec table.Record
		if !tx.Get(key, &rec) || string(rec.Value) != string(newer) || tx.Owner(rec.Owner).Node != "b" {
			t.Errorf("entry of the peer: got %q of %v, want \"newer000\" of b", rec.Value, tx.Owner(rec.Owner))
		}
	})
}
