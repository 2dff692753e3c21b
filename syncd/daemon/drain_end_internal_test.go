package daemon

import (
	"log/slog"
	"testing"
	"time"

	"mapsync/syncd/table"
)

// TestHandoverIsSavedUntilTheMapIsRefilled: a syncd that is killed after the end of a drain finds the handover in the state
// file, unless the kernel map has the entries again. Their absence would count as deletes otherwise.
func TestHandoverIsSavedUntilTheMapIsRefilled(t *testing.T) {
	for name, interrupt := range map[string]func(m *replica){
		"writes": func(*replica) {},
		// The map was out of sight, and is attached again.
		"another attachment": func(m *replica) { m.removeBarrier(&m.returnBarrier) },
	} {
		t.Run(name, func(t *testing.T) {
			m := clearedAfterDrain(t)
			id := mapIdentity{ID: 7}
			m.daemon.state.setIdentity("ct", id, &table.Unheld{})
			m.identitySaved = true
			if waiting := m.refillHandedOver(m.table); waiting != "1 entries are being written to ct" {
				t.Errorf("end of the handover: got %q, want it to wait for one entry", waiting)
			}
			// Peers may have records that were handed over, and that have yet to arrive.
			if m.identitySaved || m.daemon.state.sameMap("ct", id) {
				t.Error("identity of the map at the end of the handover: got one, want none")
			}
			interrupt(m)
			if waiting, h := m.restoring(), m.daemon.state.handover("ct"); waiting == "" || h.Incarnation != 1 {
				t.Errorf("before the entry is written: got %q and the handover %+v in the state, want it to wait with the handover", waiting, h)
			}
			writeDirty(m.table)
			if waiting, h := m.restoring(), m.daemon.state.handover("ct"); waiting != "" || h != (table.Handover{}) {
				t.Errorf("after the entry is written: got %q and the handover %+v in the state, want none", waiting, h)
			}
		})
	}
}

// clearedAfterDrain returns the replica of a drained node whose load balancer has deleted the only entry.
func clearedAfterDrain(t *testing.T) *replica {
	t.Helper()
	self := table.Owner{Node: "n", Incarnation: 1}
	tab, err := table.New(table.Options{Self: self, KeySize: 8, ValueSize: 8})
	if err != nil {
		t.Fatal(err)
	}
	d := &Daemon{clock: newClock(time.Now, monotonic), self: self, state: openState(t.TempDir(), "n", slog.New(slog.DiscardHandler))}
	m := &replica{daemon: d, name: "ct", table: tab, kernel: &attachment{}, log: slog.New(slog.DiscardHandler)}
	key := []byte("session1")
	tab.Update(func(tx *table.Tx) {
		tx.Local(&table.Change{Key: key, Value: key, Time: d.clock.now(), Op: table.OpUpdate, Context: table.ContextPacket})
		d.state.setHandover("ct", tx.BeginHandover())
		tx.Local(&table.Change{Key: key, Time: d.clock.now(), Op: table.OpDelete, Context: table.ContextSyscall})
	})
	return m
}

// writeDirty writes all dirty records.
func writeDirty(tab *table.Table) {
	c := tab.NewCursor(0)
	defer c.Close()
	tab.Update(func(tx *table.Tx) {
		var rec table.Record
		for tx.NextDirty(c, &rec) {
			tx.Applied(rec.Ref, rec.Version, nil)
		}
		tx.SetApplied(c.Position())
	})
}

// TestWritten: the state counts as written once the file has it, not while it is being written.
func TestWritten(t *testing.T) {
	s := openState(t.TempDir(), "n", slog.New(slog.DiscardHandler))
	want := func(when string, want bool) {
		t.Helper()
		if got := s.written(); got != want {
			t.Errorf("%s: written: got %t, want %t", when, got, want)
		}
	}
	s.removeIdentity("ct")
	want("after a change", false)
	s.save()
	want("after it was saved", true)
	s.writing.Lock()
	want("while the file is being written", false)
	s.writing.Unlock()
}
