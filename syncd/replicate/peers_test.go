package replicate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"mapsync/syncd/schema"
	"mapsync/syncd/schema/schematest"
	"mapsync/syncd/table"
)

// TestSetPeersUpdatesTables checks that all tables, including one added later, get the live nodes
// and those that have left, and that all streams are woken.
func TestSetPeersUpdatesTables(t *testing.T) {
	r, tb := newTestReplicator(t)
	r.ctx = t.Context()
	s, ctx := enterStream(t, r, target)
	x, y := Peer{Node: "x", Incarnation: 3, Addr: "127.0.0.1:1"}, Peer{Node: "y", Incarnation: 4, Addr: "127.0.0.1:1"}
	r.SetPeers([]Peer{x, y})
	lx := r.inboundStreams["x"]
	wasWoken(r.wake)
	wasWoken(lx.wake)
	wasWoken(s.wake)
	r.SetPeers([]Peer{x})
	if !wasWoken(r.wake) || !wasWoken(lx.wake) || !wasWoken(s.wake) {
		t.Error("change of membership: got not all woken, want the replicator and both streams woken")
	}
	if !r.gone["y"] || r.goneAt["y"].IsZero() || r.inboundStreams["y"].departedAt().IsZero() {
		t.Errorf("y after it left: got gone %t at %s, want true, a time, and a departure of its stream", r.gone["y"], r.goneAt["y"])
	}
	first := r.goneAt["y"]
	r.setGone(map[string]bool{"y": true})
	if r.goneAt["y"] != first {
		t.Error("second SetPeers without y: got another time of departure, want the first one")
	}
	late := newTable(t, r.opt.Self, false)
	if err := r.AddMap("late", Layout{KeySize: testKeySize, ValueSize: testValueSize}, late); err != nil {
		t.Fatalf("add map: got error %v, want nil", err)
	}
	for _, tb := range []*table.Table{tb, late} {
		enterRemote(tb, table.Owner{Node: "y", Incarnation: 4}, 5, 1)
		tb.Update(func(tx *table.Tx) {
			if o := tx.Local(&table.Change{Key: key(1), Op: table.OpDelete, Context: table.ContextSyscall, Time: time.Now().UnixNano()}); o != table.Accepted {
				t.Errorf("delete of a record whose owner has left: got %s, want accepted", o)
			}
		})
	}
	r.SetPeers([]Peer{x, y})
	if r.gone["y"] || !r.goneAt["y"].IsZero() {
		t.Error("y after it came back: got gone or a time of departure, want neither")
	}
	for _, tb := range []*table.Table{tb, late} {
		enterRemote(tb, table.Owner{Node: "y", Incarnation: 4}, table.Version(time.Now().Add(time.Second).UnixNano()), 2)
		tb.Update(func(tx *table.Tx) {
			if o := tx.Local(&table.Change{Key: key(2), Op: table.OpDelete, Context: table.ContextSyscall, Time: time.Now().UnixNano()}); o == table.Accepted {
				t.Error("expiry of a record of a live owner: got accepted, want restored")
			}
		})
	}
	if ctx.Err() != nil {
		t.Error("stream of a live peer: got ended, want open")
	}
	r.SetPeers([]Peer{y})
	if !errors.Is(context.Cause(ctx), errPeerGone) {
		t.Error("stream of a peer that has left: got open, want errPeerGone")
	}
	// Another incarnation, and another address.
	r.SetPeers([]Peer{{Node: "y", Incarnation: 5, Addr: "127.0.0.1:1"}})
	ly := r.inboundStreams["y"]
	if ly.peer.Incarnation != 5 {
		t.Errorf("inbound stream of y: got incarnation %d, want 5", ly.peer.Incarnation)
	}
	stopped := false
	ly.cancel = func() { stopped = true }
	r.SetPeers([]Peer{{Node: "y", Incarnation: 5, Addr: "127.0.0.1:2"}})
	if r.inboundStreams["y"] != ly || ly.currentPeer().Addr != "127.0.0.1:2" || !stopped {
		t.Errorf("inbound stream of y: got address %s, stopped %t, want 127.0.0.1:2 and true, and the same stream",
			ly.currentPeer().Addr, stopped)
	}
	stopped = false
	r.SetPeers([]Peer{{Node: "y", Incarnation: 5, Addr: "127.0.0.1:2"}})
	if stopped {
		t.Error("SetPeers without a change: got the stream stopped, want not stopped")
	}
	r.SetPeers([]Peer{{Node: "y", Incarnation: 6, Addr: "127.0.0.1:2"}})
	if !stopped || r.inboundStreams["y"] == ly {
		t.Error("inbound stream of an earlier incarnation: got running, want stopped and replaced")
	}
	ly.cancel = nil
}

// TestInboundStreamsOfDepartedNodes checks that maxDeparted streams of departed nodes are kept, and
// that those that left first are removed first.
func TestInboundStreamsOfDepartedNodes(t *testing.T) {
	r, _ := newTestReplicator(t)
	r.SetPeers([]Peer{{Node: "x", Incarnation: 3, Addr: "127.0.0.1:1"}})
	begun := time.Now()
	add := func(i int) {
		s := newInboundStream(r, Peer{Node: fmt.Sprint("n", i), Incarnation: 1})
		s.departed = begun.Add(time.Duration(i))
		r.inboundStreams[s.peer.Node] = s
	}
	for i := range maxDeparted {
		add(i)
	}
	if r.forgetInboundStreams(r.view.Load()); len(r.inboundStreams) != maxDeparted+1 {
		t.Errorf("inbound streams: got %d, want maxDeparted+1", len(r.inboundStreams))
	}
	for i := range 3 {
		add(maxDeparted + i)
	}
	r.inboundStreams["n1"].cancel = func() {} // still running
	r.forgetInboundStreams(r.view.Load())
	if len(r.inboundStreams) != maxDeparted+2 || r.inboundStreams["n0"] != nil || r.inboundStreams["n1"] == nil || r.inboundStreams["n2"] != nil || r.inboundStreams["n3"] == nil || r.inboundStreams["x"] == nil {
		t.Errorf("inbound streams: got %d, want %d, with n1, n3 and x, without n0 and n2", len(r.inboundStreams), maxDeparted+2)
	}
}

// TestReviewOwners checks that an owner that was never live counts as gone after UnknownGrace, and
// that a name without records is forgotten.
func TestReviewOwners(t *testing.T) {
	r, tb := newTestReplicator(t)
	r.SetPeers([]Peer{{Node: "x", Incarnation: 3, Addr: "127.0.0.1:1"}})
	enterRemote(tb, table.Owner{Node: "z", Incarnation: 1}, 5, 1)
	enterRemote(tb, target, 5, 2)
	putTable(t, tb, 5, 6, 1)
	r.gone["absent"] = true
	r.doHousekeeping()
	if r.gone["z"] || !r.gone["absent"] {
		t.Error("review before UnknownGrace: got owners reviewed, want not reviewed")
	}
	r.membershipSince = time.Now().Add(-r.opt.UnknownGrace - time.Second)
	r.doHousekeeping()
	if len(r.gone) != 1 || !r.gone["z"] || r.ownersReviewedAt.IsZero() {
		t.Errorf("gone nodes: got %v, want z", r.gone)
	}
	delete(r.gone, "z")
	if r.doHousekeeping(); r.gone["z"] {
		t.Error("second review at once: got owners reviewed, want not reviewed")
	}
	r.ownersReviewedAt = time.Now().Add(-ownerReviewInterval)
	if r.doHousekeeping(); !r.gone["z"] {
		t.Error("review after ownerReviewInterval: got owners not reviewed, want reviewed")
	}
	r, tb = newTestReplicator(t)
	enterRemote(tb, table.Owner{Node: "z", Incarnation: 1}, 5, 1)
	enterRemote(tb, table.Owner{Node: "a", Incarnation: 1}, 5, 2)
	enterRemote(tb, table.Owner{Node: "z", Incarnation: 2}, 6, 3)
	if r.doHousekeeping(); r.gone["z"] {
		t.Error("review before the first SetPeers: got owners reviewed, want not reviewed")
	}
	if got, want := r.localMaps()[testMap].owners(), []string{"a", "b", "z"}; !slices.Equal(got, want) {
		t.Errorf("owners: got %v, want %v", got, want)
	}
	if len(r.localMaps()[testMap].samples) != 1 {
		t.Errorf("samples for the lag: got %d, want 1", len(r.localMaps()[testMap].samples))
	}
}

// TestLocalMapValidation checks that an invalid map is refused without any change. The keys of the
// table are parts of the errors.
func TestLocalMapValidation(t *testing.T) {
	self := table.Owner{Node: "b", Incarnation: 2}
	layout := func(k, v int) Layout { return Layout{KeySize: k, ValueSize: v} }
	with := func(l Layout, s *schema.Schema) Layout { l.Schema = s; return l }
	for want, c := range map[string]struct {
		name   string
		tb     *table.Table
		layout Layout
	}{
		"with 9+16 bytes on a table of 8+16": {"m", newTable(t, self, false), layout(9, 16)},
		"with 8+17 bytes on a table of 8+16": {"m", newTable(t, self, false), layout(8, 17)},
		"entries of 32769 bytes":             {"m", newSizedTable(t, self, 1, maxEntryBytes, false), layout(1, maxEntryBytes)},
		`node name "" of 0 bytes`:            {"", newTable(t, self, false), layout(8, 16)},
		"check schema":                       {"m", newTable(t, self, false), with(layout(8, 16), &schema.Schema{Map: "m"})},
		"a schema of 8+40 bytes":             {"m", newTable(t, self, false), with(layout(8, 16), schematest.OldVersion())},
		"a schema of 4+":                     {"m", newSizedTable(t, self, 8, schematest.InterfaceKey().Value.Size, false), with(layout(8, schematest.InterfaceKey().Value.Size), schematest.InterfaceKey())},
		"the table of another node":          {"m", newTable(t, target, false), layout(8, 16)},
		"a second time":                      {testMap, newTable(t, self, false), layout(8, 16)},
	} {
		r, _ := newTestReplicator(t)
		before := r.localMaps()
		err := r.AddMap(c.name, c.layout, c.tb)
		if !errors.Is(err, ErrMap) || !strings.Contains(err.Error(), want) || len(r.localMaps()) != len(before) {
			t.Errorf("add map: want error %q, got: %v", want, err)
		}
	}
	r, _ := newTestReplicator(t)
	if err := r.AddMap("large", layout(1, maxEntryBytes-1), newSizedTable(t, self, 1, maxEntryBytes-1, false)); err != nil {
		t.Errorf("add a map with the largest entries: got %v, want nil", err)
	}
	at := time.Unix(1000, 0)
	r.opt.Now = func() time.Time { return at }
	generations := map[uint64]bool{}
	for i := range MaxMaps - 2 {
		wasWoken(r.wake)
		name := fmt.Sprint("m", i)
		if err := r.AddMap(name, layout(8, 16), newTable(t, self, false)); err != nil || !wasWoken(r.wake) {
			t.Fatalf("add map %s: got error %v, or the replicator not woken, want nil and woken", name, err)
		}
		generations[r.localMaps()[name].generation] = true
	}
	if len(generations) != MaxMaps-2 {
		t.Errorf("generations: got %d of %d maps, want a different one for each map", len(generations), MaxMaps-2)
	}
	if err := r.AddMap("one-more", layout(8, 16), newTable(t, self, false)); !errors.Is(err, ErrMap) {
		t.Errorf("map %d: got %v, want ErrMap", MaxMaps+1, err)
	}
	if r.RemoveMap("m0"); !wasWoken(r.wake) || r.localMaps()["m0"] != nil {
		t.Error("removed map: got still present, or Run not woken, want removed, and Run woken")
	}
	r.RemoveMap("m0")
}

// TestLagSamples checks the age of the oldest change above a position, from samples that are
// thinned out.
func TestLagSamples(t *testing.T) {
	r, tb := newTestReplicator(t)
	m := r.localMaps()[testMap]
	begun := time.Unix(1000, 0)
	if m.lagSince(0, begun) != 0 {
		t.Error("lag without changes: got another value, want 0")
	}
	for i := range maxSamples {
		putTable(t, tb, i, i+1, 1)
		m.sampleLag(begun.Add(time.Duration(i) * time.Second))
		m.sampleLag(begun.Add(time.Duration(i)*time.Second + 1)) // no change
	}
	if len(m.samples) != maxSamples {
		t.Fatalf("samples: got %d, want maxSamples", len(m.samples))
	}
	end := begun.Add(maxSamples * time.Second)
	for _, acked := range []uint64{0, 1, 500, maxSamples - 1} {
		if got, want := m.lagSince(acked, end), end.Sub(begun.Add(time.Duration(acked)*time.Second)); got != want {
			t.Errorf("lag since %d: got %s, want %s", acked, got, want)
		}
	}
	if got := m.lagSince(maxSamples, end); got != 0 {
		t.Errorf("lag at the head: got %s, want 0", got)
	}
	if got := m.lagSince(1, begun); got != 0 {
		t.Errorf("lag before the sample: got %s, want 0", got)
	}
	putTable(t, tb, maxSamples, maxSamples+1, 1)
	m.sampleLag(end)
	if n := len(m.samples); n != maxSamples/2+1 || m.samples[0].position != 2 || m.samples[n-2].position != maxSamples || m.samples[n-1].position != maxSamples+1 {
		t.Errorf("samples: got %d, the first at %d, want %d, the first at 2, the last two at %d and %d",
			n, m.samples[0].position, maxSamples/2+1, maxSamples, maxSamples+1)
	}
}
