package replicate

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"mapsync/internal/poll"
	"mapsync/syncd/schema"
	"mapsync/syncd/schema/schematest"
	"mapsync/syncd/table"
)

// TestDifferentLayoutIsRefused checks that a map with another layout is refused and served once it
// is replaced.
func TestDifferentLayoutIsRefused(t *testing.T) {
	a, b := startNode(t, "a", 1, nil), startNode(t, "b", 2, nil)
	wide := newSizedTable(t, a.self, testKeySize, 2*testValueSize, false)
	a.addMap("other", wide)
	b.addMap("other", newTable(t, b.self, false))
	connectNodes(a, b)
	a.put(0, 10, 1)
	poll.Within(t, deadline, "the map that matches is replicated", func() bool { return len(live(b.tb)) == 10 })
	poll.Within(t, deadline, "the other map is refused", func() bool {
		m, _ := b.status("a", "other")
		return m.State == StateRefused && strings.Contains(m.Error, `map \"other\" of a does not fit that of b`) &&
			strings.Contains(m.Error, "value: 16 bytes here, 32 at the sender")
	})
	poll.Within(t, deadline, "the initial sync does not wait for the refused map", func() bool { ok, _ := b.r.InitialSyncDone(); return ok })
	// The subscription is answered again when the sender's map changes.
	a.r.RemoveMap("other")
	right := newTable(t, a.self, false)
	putTable(t, right, 0, 5, 1)
	a.addMap("other", right)
	poll.Within(t, deadline, "the map is served", func() bool { m, _ := b.status("a", "other"); return m.State == StateCaughtUp && m.In.Deltas == 5 })
}

// TestAddAndRemoveMaps adds and removes maps while peers are connected.
func TestAddAndRemoveMaps(t *testing.T) {
	a, b := startNode(t, "a", 1, nil), startNode(t, "b", 2, nil)
	connectNodes(a, b)
	theirs := newTable(t, b.self, false)
	b.addMap("late", theirs)
	poll.Within(t, deadline, "the map is pending", func() bool { m, _ := b.status("a", "late"); return m.State == StatePending })
	ours := newTable(t, a.self, false)
	putTable(t, ours, 0, 100, 1)
	a.addMap("late", ours)
	poll.Within(t, deadline, "the map is served", func() bool { return len(live(theirs)) == 100 })

	a.r.RemoveMap("late")
	putTable(t, ours, 100, 110, 1)
	poll.Within(t, deadline, "the map is pending again", func() bool { m, _ := b.status("a", "late"); return m.State == StatePending })
	// Another table, whose positions are unrelated.
	ours = newTable(t, a.self, false)
	putTable(t, ours, 200, 210, 1)
	a.addMap("late", ours)
	poll.Within(t, deadline, "the new map is served", func() bool { return len(live(theirs)) == 110 })

	b.r.RemoveMap("late")
	poll.Within(t, deadline, "the subscription has ended", func() bool { m, _ := a.status("b", "late"); return !m.Serving })
	putTable(t, ours, 300, 310, 1)
	a.put(0, 10, 1)
	poll.Within(t, deadline, "the other map is replicated", func() bool { return len(live(b.tb)) == 10 })
	if n := len(live(theirs)); n != 110 {
		t.Errorf("keys of the removed map: got %d, want 110", n)
	}
	for _, n := range []*node{a, b} {
		if s := n.r.Stats(); s.GapsOrErrors() != 0 {
			t.Errorf("errors during the test: got %+v, want none", s)
		}
	}
}

// TestManyMaps replicates MaxMaps maps.
func TestManyMaps(t *testing.T) {
	a, b := startNode(t, "a", 1, nil), startNode(t, "b", 2, nil)
	var last *table.Table
	for i := range MaxMaps - 1 {
		ours := newTable(t, a.self, false)
		putTable(t, ours, 0, 20, i)
		last = newTable(t, b.self, false)
		name := fmt.Sprintf("map%d", i)
		a.addMap(name, ours)
		b.addMap(name, last)
	}
	err := a.r.AddMap("more", Layout{KeySize: testKeySize, ValueSize: testValueSize}, a.tb)
	if !errors.Is(err, ErrMap) {
		t.Errorf("add a map above the limit: got %v, want ErrMap", err)
	}
	connectNodes(a, b)
	poll.Within(t, 6*deadline, "all maps are replicated", func() bool {
		_, p := b.status("a", testMap)
		n := 0
		for _, m := range p.Maps {
			if m.In.Deltas == 20 {
				n++
			}
		}
		return n == MaxMaps-1 && len(live(last)) == 20
	})
}

// TestAddMapErrors adds invalid maps.
func TestAddMapErrors(t *testing.T) {
	a := startNode(t, "a", 1, nil)
	foreign := newTable(t, table.Owner{Node: "b", Incarnation: 1}, false)
	huge := newSizedTable(t, a.self, 8, maxEntryBytes, false)
	ok := Layout{KeySize: testKeySize, ValueSize: testValueSize}
	typed := func(value *schema.Message) Layout {
		s := schema.FromSizes("x", testKeySize, testValueSize)
		s.Value, s.Opaque = value, false
		return Layout{KeySize: testKeySize, ValueSize: testValueSize, Schema: s}
	}
	// Each byte of the value can become the name of an interface.
	links := typed(schematest.Members("links", schema.Field{Size: 1, Count: maxEntryBytes - 8, Kind: schema.KindIfname})).Schema
	wide := newSizedTable(t, a.self, 8, links.Value.Size, false)
	var wordy []schema.Field
	for range testValueSize {
		f := schema.Field{Size: 1, Kind: schema.KindEnum, Enum: &schema.Enum{}}
		for range 2000 {
			f.Enum.Values = append(f.Enum.Values, schema.EnumValue{Name: "WORD"})
		}
		wordy = append(wordy, f)
	}
	for name, err := range map[string]error{
		"twice":                    a.r.AddMap(testMap, ok, a.tb),
		"another layout":           a.r.AddMap("x", Layout{KeySize: 4, ValueSize: 4}, a.tb),
		"foreign":                  a.r.AddMap("x", ok, foreign),
		"no name":                  a.r.AddMap("", ok, a.tb),
		"not UTF-8":                a.r.AddMap("\xff", ok, a.tb),
		"entry too large":          a.r.AddMap("x", Layout{KeySize: 8, ValueSize: maxEntryBytes}, huge),
		"another schema":           a.r.AddMap("x", typed(schematest.OldVersion().Value), a.tb),
		"schema without a value":   a.r.AddMap("x", typed(nil), a.tb),
		"encoded entry too large":  a.r.AddMap("x", Layout{KeySize: 8, ValueSize: links.Value.Size, Schema: links}, wide),
		"encoded schema too large": a.r.AddMap("x", typed(schematest.Members("wordy", wordy...)), a.tb),
	} {
		if !errors.Is(err, ErrMap) {
			t.Errorf("%s: add map: got %v, want ErrMap", name, err)
		}
	}
}

// TestLagIsMeasured checks the lag for different numbers of changes.
func TestLagIsMeasured(t *testing.T) {
	m := &localMap{table: newTable(t, table.Owner{Node: "a"}, false)}
	begun := time.Now()
	for i := range 3 * maxSamples {
		putTable(t, m.table, i, i+1, 1)
		m.sampleLag(begun.Add(time.Duration(i) * time.Second))
	}
	now := begun.Add(3 * maxSamples * time.Second)
	if len(m.samples) > maxSamples {
		t.Errorf("samples: got %d, want at most maxSamples", len(m.samples))
	}
	head := m.head()
	for _, behind := range []uint64{1, 10, 1000, 3000} {
		got, want := m.lagSince(head-behind, now), time.Duration(behind)*time.Second
		if got > want || got < want-16*time.Second {
			t.Errorf("%d changes behind: lag: got %s, want about %s", behind, got, want)
		}
	}
	if got := m.lagSince(head, now); got != 0 {
		t.Errorf("no changes behind: lag: got %s, want 0", got)
	}
}
