package replicate

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/schema"
	"mapsync/syncd/table"
)

// TestExceptionsOfASync: a full sync forgets those that it does not meet, and only it.
func TestExceptionsOfASync(t *testing.T) {
	var e exceptions
	keys := func() (keys []string) {
		e.each(100, func(key, _ string) { keys = append(keys, key) })
		return keys
	}
	why := errors.New("why")
	if keys() != nil {
		t.Error("none were added")
	}
	e.settle([]byte("a")) // of none
	e.begin()
	for _, k := range []string{"c", "b", "a"} {
		e.add([]byte(k), 1, target, why)
	}
	e.end()
	if got := keys(); !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Errorf("%v", got)
	}
	e.settle([]byte("x"))
	if e.settle([]byte("b")); !slices.Equal(keys(), []string{"a", "c"}) {
		t.Errorf("%v after one was settled", keys())
	}
	e.begin()
	e.add([]byte("c"), 2, target, why)
	if len(keys()) != 2 {
		t.Errorf("%v before the end of the sync", keys())
	}
	if e.end(); !slices.Equal(keys(), []string{"c"}) {
		t.Errorf("%v after the sync", keys())
	}
	var first []string
	e.add([]byte("d"), 1, target, why)
	e.each(1, func(key, _ string) { first = append(first, key) })
	if !slices.Equal(first, []string{"c"}) {
		t.Errorf("the first: %v", first)
	}
	e.byKey["c"].walk--
	if e.end(); len(keys()) != 2 {
		t.Error("the end of a sync that has ended forgets entries")
	}
	e.add(make([]byte, maxExceptionKey), 1, target, why)
	e.add(make([]byte, maxExceptionKey+1), 1, target, why)
	if len(keys()) != 3 || e.count() != 4 {
		t.Errorf("%d remembered, %d counted", len(keys()), e.count())
	}
}

// TestExceptionsAreLogged: the first of them, with their number, once in a minute.
func TestExceptionsAreLogged(t *testing.T) {
	var e exceptions
	now, lines := time.Now(), ""
	log := func() {
		e.log(now, func(count int, key []byte, why error) { lines += fmt.Sprintf("%d %s %v;", count, key, why) })
	}
	log()
	e.add([]byte("a"), 1, target, errors.New("one"))
	e.add([]byte("b"), 1, target, errors.New("two"))
	e.add(make([]byte, maxExceptionKey+1), 1, target, errors.New("three"))
	log()
	now = now.Add(time.Hour)
	log() // nothing is new
	e.add([]byte("c"), 1, target, errors.New("four"))
	log()
	e.add([]byte("d"), 1, target, errors.New("five"))
	now = now.Add(exceptionLogInterval - 1)
	log()
	if want := "3 a one;4 c four;"; lines != want {
		t.Errorf("logged %q, want %q", lines, want)
	}
	now = now.Add(1)
	if log(); !strings.HasSuffix(lines, "5 d five;") {
		t.Errorf("logged %q", lines)
	}
}

// TestNumbersThatDoNotFit: a record that this node's types cannot hold is remembered under its
// owner, logged, and taken out of the comparison of another layout.
func TestNumbersThatDoNotFit(t *testing.T) {
	var out strings.Builder
	r, err := New(Options{Self: table.Owner{Node: "b", Incarnation: 2}, Dial: noDial, Logger: slog.New(slog.NewTextHandler(&out, nil))})
	if err != nil {
		t.Fatal(err)
	}
	old, newer := oldSchema(), newSchema()
	tb := newSizedTable(t, r.opt.Self, old.Key.Size, old.Value.Size, false)
	if err := r.AddMap(testMap, Layout{KeySize: old.Key.Size, ValueSize: old.Value.Size, Schema: old}, tb); err != nil {
		t.Fatal(err)
	}
	r.SetPeers([]Peer{{Node: "x", Incarnation: 1}})
	l := newLink(r, Peer{Node: "x", Incarnation: 1})
	l.requests(nil, r.localMaps(), time.Now())
	in := l.intakes[testMap]
	if err := in.accept(&mapsyncv1.MapAccepted{Map: 1, Generation: 1, Reset_: true, Schema: toProto(newer)}); err != nil || in.state != StateSyncing {
		t.Fatal(err, in.state, in.err)
	}
	enc, err := schema.NewEncoder(newer, nil)
	if err != nil {
		t.Fatal(err)
	}
	send := func(from, to uint64, version uint64, packets uint64, op mapsyncv1.Operation, keys ...byte) {
		t.Helper()
		m := stockBatch(1, from, to)
		b := m.GetBatch()
		b.Owners = []*mapsyncv1.Incarnation{{Node: "z", Number: 1}, {Node: "x", Number: 1}}
		for _, k := range keys {
			wire, err := enc.AppendKey(nil, flow(k))
			if err != nil {
				t.Fatal(err)
			}
			d := &mapsyncv1.Delta{Key: wire, Version: version, Owner: 1, Operation: op}
			if op == mapsyncv1.Operation_OPERATION_UPDATE {
				d.Value = enc.AppendValue(nil, ct{Packets: packets}.new(), &schema.Times{})
			}
			b.Deltas = append(b.Deltas, d)
		}
		if err := l.take(mustMarshal(t, m)); err != nil || in.state == StateFailed {
			t.Fatal(err, in.err)
		}
	}
	const update = mapsyncv1.Operation_OPERATION_UPDATE
	send(0, 10, 5, 7, update, 1, 2)
	send(10, 20, 6, 1<<40, update, 1, 3) // of 1, an older record is held
	if n := in.excepted.count(); n != 2 || r.Stats().DeltasOutOfRange != 2 {
		t.Errorf("%d exceptions, %d out of range", n, r.Stats().DeltasOutOfRange)
	}
	for _, x := range in.excepted.byKey {
		if x.owner != (table.Owner{Node: "x", Incarnation: 1}) || x.version != 6 {
			t.Errorf("%+v", x)
		}
	}
	if !strings.Contains(out.String(), "a failover to this node loses them") || !strings.Contains(out.String(), "addr=10.0.0.") ||
		!strings.Contains(out.String(), "finish the upgrade") {
		t.Errorf("logged %q", out.String())
	}
	// The peer's digest has both; this node's has the older record of 1.
	var here, want uint64
	tb.View(func(tx *table.Tx) {
		g := tx.Digest("x", nil)
		here = g.Loose + in.loose(tx, func(node string) bool { return node == "x" })
		owner := table.Owner{Node: "x", Incarnation: 1}
		want = tx.LooseOf(owner, 5) + 2*tx.LooseOf(owner, 6)
		if n := in.loose(tx, func(node string) bool { return node == "z" }); n != 0 {
			t.Errorf("another node's digest lacks %d", n)
		}
	})
	if here != want {
		t.Error("the digest of another layout lacks the exceptions")
	}
	in.excepted.add([]byte{0xff}, 9, table.Owner{Node: "x", Incarnation: 1}, errGap) // no key
	tb.View(func(tx *table.Tx) {
		g := tx.Digest("x", nil)
		if n := g.Loose + in.loose(tx, func(node string) bool { return node == "x" }); n != want+tx.LooseOf(table.Owner{Node: "x", Incarnation: 1}, 9) {
			t.Error("a key that cannot be read counts for more than itself")
		}
	})
	// A record that fits, or is deleted, ceases to be an exception.
	send(20, 30, 7, 8, update, 1)
	send(30, 40, 7, 0, mapsyncv1.Operation_OPERATION_DELETE, 3)
	if n := in.excepted.count(); n != 1 {
		t.Errorf("%d exceptions after they fitted", n)
	}
}

// TestNamesOfInterfaces: names that do not exist here get numbers, from 1, and are bounded.
func TestNamesOfInterfaces(t *testing.T) {
	var l nameLinks
	for i, name := range []string{"eth0", "eth1"} {
		for range 2 {
			if n, ok := l.Index(name); !ok || n != uint32(i+1) {
				t.Errorf("%s is %d, %t", name, n, ok)
			}
		}
		if got, ok := l.Name(uint32(i + 1)); !ok || got != name {
			t.Errorf("%d is %q, %t", i+1, got, ok)
		}
	}
	for _, index := range []uint32{0, 3} {
		if name, ok := l.Name(index); ok {
			t.Errorf("%d is %q", index, name)
		}
	}
	for i := range maxLinkNames - 2 {
		if _, ok := l.Index(fmt.Sprint("x", i)); !ok {
			t.Fatalf("name %d is refused", i)
		}
	}
	if n, ok := l.Index("one more"); ok {
		t.Errorf("a name too many is %d", n)
	}
	if n, ok := l.Index("eth1"); !ok || n != 2 {
		t.Error("a name that is there is refused")
	}
	var none wirePrinter
	if got := none.key([]byte{0xab}); got != "key ab" {
		t.Errorf("a key without types: %q", got)
	}
}
