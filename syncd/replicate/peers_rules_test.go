package replicate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/schema"
	"mapsync/syncd/table"
)

// TestMembershipOfTables: tables know which nodes are live and which have left, also one that is added
// later; and all streams are woken.
func TestMembershipOfTables(t *testing.T) {
	r, tb := newReceiver(t)
	r.ctx = t.Context()
	s, ctx := enter(t, r, target)
	x, y := Peer{Node: "x", Incarnation: 3, Addr: "127.0.0.1:1"}, Peer{Node: "y", Incarnation: 4, Addr: "127.0.0.1:1"}
	r.SetPeers([]Peer{x, y})
	lx := r.links["x"]
	woken(r.wake)
	woken(lx.wake)
	woken(s.wake)
	r.SetPeers([]Peer{x})
	if !woken(r.wake) || !woken(lx.wake) || !woken(s.wake) {
		t.Error("a change of membership does not wake all")
	}
	if !r.gone["y"] || r.goneAt["y"].IsZero() || r.links["y"].left().IsZero() {
		t.Errorf("y has left: %t at %s", r.gone["y"], r.goneAt["y"])
	}
	first := r.goneAt["y"]
	r.setGone(map[string]bool{"y": true})
	if r.goneAt["y"] != first {
		t.Error("a node leaves a second time")
	}
	late := newTable(t, r.opt.Self, false)
	if err := r.AddMap("late", Layout{KeySize: testKeySize, ValueSize: testValueSize}, late); err != nil {
		t.Fatal(err)
	}
	for _, tb := range []*table.Table{tb, late} {
		enterRemote(tb, table.Owner{Node: "y", Incarnation: 4}, 5, 1)
		tb.Update(func(tx *table.Tx) {
			if o := tx.Local(&table.Change{Key: key(1), Op: table.OpDelete, Context: table.ContextSyscall, Time: time.Now().UnixNano()}); o != table.Accepted {
				t.Errorf("a delete of a record whose owner has left: %s", o)
			}
		})
	}
	r.SetPeers([]Peer{x, y})
	if r.gone["y"] || !r.goneAt["y"].IsZero() {
		t.Error("y is back and counts as gone")
	}
	for _, tb := range []*table.Table{tb, late} {
		enterRemote(tb, table.Owner{Node: "y", Incarnation: 4}, table.Version(time.Now().Add(time.Second).UnixNano()), 2)
		tb.Update(func(tx *table.Tx) {
			if o := tx.Local(&table.Change{Key: key(2), Op: table.OpDelete, Context: table.ContextSyscall, Time: time.Now().UnixNano()}); o == table.Accepted {
				t.Error("an expiry of a live owner's record is replicated")
			}
		})
	}
	if ctx.Err() != nil {
		t.Error("the stream of a live peer ends")
	}
	r.SetPeers([]Peer{y})
	if !errors.Is(context.Cause(ctx), errPeerGone) {
		t.Error("the stream of a peer that has left goes on")
	}
	// Another life, and another address.
	r.SetPeers([]Peer{{Node: "y", Incarnation: 5, Addr: "127.0.0.1:1"}})
	ly := r.links["y"]
	if ly.peer.Incarnation != 5 {
		t.Error("the link is to an earlier life")
	}
	stopped := false
	ly.cancel = func() { stopped = true }
	r.SetPeers([]Peer{{Node: "y", Incarnation: 5, Addr: "127.0.0.1:2"}})
	if r.links["y"] != ly || ly.current().Addr != "127.0.0.1:2" || !stopped {
		t.Errorf("at %s, stopped %t", ly.current().Addr, stopped)
	}
	stopped = false
	r.SetPeers([]Peer{{Node: "y", Incarnation: 5, Addr: "127.0.0.1:2"}})
	if stopped {
		t.Error("nothing has changed, and the stream ends")
	}
	r.SetPeers([]Peer{{Node: "y", Incarnation: 6, Addr: "127.0.0.1:2"}})
	if !stopped || r.links["y"] == ly {
		t.Error("the stream of an earlier life goes on")
	}
	ly.cancel = nil
}

// TestLinksOfNodesThatLeft: as many are kept as may come back, those that left first go first.
func TestLinksOfNodesThatLeft(t *testing.T) {
	r, _ := newReceiver(t)
	r.SetPeers([]Peer{{Node: "x", Incarnation: 3, Addr: "127.0.0.1:1"}})
	begun := time.Now()
	add := func(i int) {
		l := newLink(r, Peer{Node: fmt.Sprint("n", i), Incarnation: 1})
		l.departed = begun.Add(time.Duration(i))
		r.links[l.peer.Node] = l
	}
	for i := range maxDeparted {
		add(i)
	}
	if r.forgetLinks(r.view.Load()); len(r.links) != maxDeparted+1 {
		t.Errorf("%d links", len(r.links))
	}
	for i := range 3 {
		add(maxDeparted + i)
	}
	r.links["n1"].cancel = func() {} // still running
	r.forgetLinks(r.view.Load())
	if len(r.links) != maxDeparted+2 || r.links["n0"] != nil || r.links["n1"] == nil || r.links["n2"] != nil || r.links["n3"] == nil || r.links["x"] == nil {
		t.Errorf("%d links", len(r.links))
	}
}

// TestOwnersAreReviewed: one that was never seen counts as gone after a time, and a name without records
// is forgotten.
func TestOwnersAreReviewed(t *testing.T) {
	r, tb := newReceiver(t)
	r.SetPeers([]Peer{{Node: "x", Incarnation: 3, Addr: "127.0.0.1:1"}})
	enterRemote(tb, table.Owner{Node: "z", Incarnation: 1}, 5, 1)
	enterRemote(tb, target, 5, 2)
	putTable(t, tb, 5, 6, 1)
	r.gone["nobody"] = true
	r.keepHouse()
	if r.gone["z"] || !r.gone["nobody"] {
		t.Error("reviewed before the time")
	}
	r.known = time.Now().Add(-r.opt.UnknownGrace - time.Second)
	r.keepHouse()
	if len(r.gone) != 1 || !r.gone["z"] || r.reviewed.IsZero() {
		t.Errorf("gone: %v", r.gone)
	}
	delete(r.gone, "z")
	if r.keepHouse(); r.gone["z"] {
		t.Error("reviewed again at once")
	}
	r.reviewed = time.Now().Add(-reviewPause)
	if r.keepHouse(); !r.gone["z"] {
		t.Error("not reviewed again")
	}
	r, tb = newReceiver(t)
	enterRemote(tb, table.Owner{Node: "z", Incarnation: 1}, 5, 1)
	if r.keepHouse(); r.gone["z"] {
		t.Error("reviewed before membership is known")
	}
	if got := r.localMaps()[testMap].owners(); !slices.Contains(got, "z") || !slices.IsSorted(got) {
		t.Errorf("owners %v", got)
	}
	if len(r.localMaps()[testMap].samples) != 1 {
		t.Error("no sample for the lag")
	}
}

// TestMapsAreChecked: a map that cannot be replicated is refused, and nothing changes.
func TestMapsAreChecked(t *testing.T) {
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
		"node name of 0 bytes":               {"", newTable(t, self, false), layout(8, 16)},
		"check schema":                       {"m", newTable(t, self, false), with(layout(8, 16), &schema.Schema{Map: "m"})},
		"a schema of 8+40 bytes":             {"m", newTable(t, self, false), with(layout(8, 16), oldSchema())},
		"a schema of 4+":                     {"m", newSizedTable(t, self, 8, linkSchema().Value.Size, false), with(layout(8, linkSchema().Value.Size), linkSchema())},
		"the table of another node":          {"m", newTable(t, target, false), layout(8, 16)},
		"a second time":                      {testMap, newTable(t, self, false), layout(8, 16)},
	} {
		r, _ := newReceiver(t)
		before := r.localMaps()
		err := r.AddMap(c.name, c.layout, c.tb)
		if !errors.Is(err, ErrMap) || !strings.Contains(err.Error(), want) || len(r.localMaps()) != len(before) {
			t.Errorf("expected %q, got: %v", want, err)
		}
	}
	r, _ := newReceiver(t)
	if err := r.AddMap("large", layout(1, maxEntryBytes-1), newSizedTable(t, self, 1, maxEntryBytes-1, false)); err != nil {
		t.Errorf("the largest entries: %v", err)
	}
	at := time.Unix(1000, 0)
	r.opt.Now = func() time.Time { return at }
	generations := map[uint64]bool{}
	for i := range MaxMaps - 2 {
		woken(r.wake)
		name := fmt.Sprint("m", i)
		if err := r.AddMap(name, layout(8, 16), newTable(t, self, false)); err != nil || !woken(r.wake) {
			t.Fatal(err)
		}
		generations[r.localMaps()[name].generation] = true
	}
	if len(generations) != MaxMaps-2 {
		t.Errorf("%d generations of %d maps", len(generations), MaxMaps-2)
	}
	if err := r.AddMap("one more", layout(8, 16), newTable(t, self, false)); !errors.Is(err, ErrMap) {
		t.Errorf("map %d: %v", MaxMaps+1, err)
	}
	if r.RemoveMap("m0"); !woken(r.wake) || r.localMaps()["m0"] != nil {
		t.Error("the map is still there")
	}
	r.RemoveMap("m0")
}

// TestLagOfAMap: how old the oldest change above a position is, from samples that thin out.
func TestLagOfAMap(t *testing.T) {
	r, tb := newReceiver(t)
	m := r.localMaps()[testMap]
	begun := time.Unix(1000, 0)
	if m.lagSince(0, begun) != 0 {
		t.Error("a lag without changes")
	}
	for i := range maxSamples {
		putTable(t, tb, i, i+1, 1)
		m.sampleLag(begun.Add(time.Duration(i) * time.Second))
		m.sampleLag(begun.Add(time.Duration(i)*time.Second + 1)) // nothing new
	}
	if len(m.samples) != maxSamples {
		t.Fatalf("%d samples", len(m.samples))
	}
	end := begun.Add(maxSamples * time.Second)
	for _, acked := range []uint64{0, 1, 500, maxSamples - 1} {
		if got, want := m.lagSince(acked, end), end.Sub(begun.Add(time.Duration(acked)*time.Second)); got != want {
			t.Errorf("since %d: %s, want %s", acked, got, want)
		}
	}
	if got := m.lagSince(maxSamples, end); got != 0 {
		t.Errorf("nothing is late: %s", got)
	}
	if got := m.lagSince(1, begun); got != 0 {
		t.Errorf("a lag before its time: %s", got)
	}
	putTable(t, tb, maxSamples, maxSamples+1, 1)
	m.sampleLag(end)
	if n := len(m.samples); n != maxSamples/2+1 || m.samples[0].position != 2 || m.samples[n-2].position != maxSamples || m.samples[n-1].position != maxSamples+1 {
		t.Errorf("%d samples, from %d", n, m.samples[0].position)
	}
}

// TestSchemasOfPeersAreChecked: a schema that this node cannot read is an error, and one that it can comes
// out as it went in.
func TestSchemasOfPeersAreChecked(t *testing.T) {
	for _, s := range []*schema.Schema{oldSchema(), newSchema(), linkSchema()} {
		got, err := fromProto("typed", toProto(s))
		if err != nil || fmt.Sprint(toProto(got)) != fmt.Sprint(toProto(s)) {
			t.Errorf("%v", err)
		}
	}
	deep := func(levels int) *mapsyncv1.MessageType {
		m := &mapsyncv1.MessageType{Name: "leaf", Size: 1, Fields: []*mapsyncv1.Field{{Name: "f", Number: 1, Size: 1, Kind: kindToProto(schema.KindUint)}}}
		for range levels {
			m = &mapsyncv1.MessageType{Name: "m", Size: 1, Fields: []*mapsyncv1.Field{{Name: "f", Number: 1, Size: 1, Kind: kindToProto(schema.KindMessage), Message: m}}}
		}
		return m
	}
	for want, change := range map[string]func(*mapsyncv1.Schema){
		"read schema of":              func(s *mapsyncv1.Schema) { s.Key.Name = strings.Repeat("k", maxSchemaBytes) },
		"type of keys: read no type":  func(s *mapsyncv1.Schema) { s.Key = nil },
		"type of values: read no typ": func(s *mapsyncv1.Schema) { s.Value = nil },
		"unknown kind 0":              func(s *mapsyncv1.Schema) { s.Key.Fields[0].Kind = 0 },
		"unknown kind 99":             func(s *mapsyncv1.Schema) { s.Key.Fields[0].Kind = 99 },
		"unknown role 0":              func(s *mapsyncv1.Schema) { s.Key.Fields[0].Roles = []mapsyncv1.FieldRole{0} },
		"unknown role 99":             func(s *mapsyncv1.Schema) { s.Key.Fields[0].Roles = []mapsyncv1.FieldRole{99} },
		"nested more than":            func(s *mapsyncv1.Schema) { s.Value = deep(schema.MaxDepth + 1) },
	} {
		p := toProto(oldSchema())
		change(p)
		if _, err := fromProto("typed", p); !errors.Is(err, errMalformed) || !strings.Contains(err.Error(), want) {
			t.Errorf("expected %q, got: %v", want, err)
		}
	}
	if _, err := fromProto("typed", nil); !errors.Is(err, errMalformed) {
		t.Errorf("none: %v", err)
	}
	if _, err := messageFromProto(deep(schema.MaxDepth), 1); err != nil {
		t.Errorf("as deep as may be: %v", err)
	}
}
