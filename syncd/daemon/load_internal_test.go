package daemon

import (
	"context"
	"testing"
	"time"

	"mapsync/syncd/kmap"
	"mapsync/syncd/table"

	"github.com/cilium/ebpf"
)

// A map that comes again and cannot be read at the first try is still the same map: what
// the daemon once wrote there for a peer is not its load balancer's.
func TestRescanThatFailsIsDoneAgain(t *testing.T) {
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
	m := &replica{daemon: &Daemon{clock: newClock(time.Now)}}
	load := func(ctx context.Context) error {
		_, err := m.load(ctx, k, tb)
		return err
	}
	if err := load(t.Context()); err != nil {
		t.Fatal(err)
	}
	m.known, m.offered = true, tb
	key, older, newer := []byte("session1"), []byte("older000"), []byte("newer000")
	tell := func(v table.Version, value []byte) {
		tb.Update(func(tx *table.Tx) {
			d := table.Delta{Key: key, Value: value, Version: v, Owner: tx.Intern(table.Owner{Node: "b", Incarnation: 1})}
			if o := tx.Remote(&d, 1, table.RemoteOptions{}); o != table.Accepted {
				t.Errorf("record of the peer: %s", o)
			}
		})
	}
	tell(1, older)
	if err := raw.Put(key, older); err != nil { // as its syncer did
		t.Fatal(err)
	}
	tell(2, newer) // while the map is out of sight
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := load(gone); err == nil {
		t.Fatal("read a map although nobody waits any more")
	}
	if err := load(t.Context()); err != nil {
		t.Fatal(err)
	}
	tb.View(func(tx *table.Tx) {
		var rec table.Record
		if !tx.Get(key, &rec) || string(rec.Value) != string(newer) || tx.Owner(rec.Owner).Node != "b" {
			t.Errorf("the peer's entry is %q now, of %v", rec.Value, tx.Owner(rec.Owner))
		}
	})
}
