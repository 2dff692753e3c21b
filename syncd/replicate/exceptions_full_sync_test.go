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
	"mapsync/syncd/replicate/wire"
	"mapsync/syncd/schema"
	"mapsync/syncd/schema/schematest"
	"mapsync/syncd/table"
)

// TestFullSyncRemovesOldExceptions checks that a full sync, and only a full sync, removes the
// exceptions that it does not contain.
func TestFullSyncRemovesOldExceptions(t *testing.T) {
	var e exceptions
	keys := func() (keys []string) {
		e.each(100, func(key, _ string) { keys = append(keys, key) })
		return keys
	}
	why := errors.New("why")
	if keys() != nil {
		t.Error("keys: got some, want none")
	}
	e.resolve([]byte("a")) // not an exception
	e.beginSync()
	for _, k := range []string{"c", "b", "a"} {
		e.add([]byte(k), 1, target, why)
	}
	e.endSync()
	if got := keys(); !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Errorf("keys: got %v, want a, b and c", got)
	}
	e.resolve([]byte("x"))
	if e.resolve([]byte("b")); !slices.Equal(keys(), []string{"a", "c"}) {
		t.Errorf("keys after one was resolved: got %v, want a and c", keys())
	}
	e.beginSync()
	e.add([]byte("c"), 2, target, why)
	if len(keys()) != 2 {
		t.Errorf("keys before the end of the full sync: got %v, want a and c", keys())
	}
	if e.endSync(); !slices.Equal(keys(), []string{"c"}) {
		t.Errorf("keys after the full sync: got %v, want c", keys())
	}
	var first []string
	e.add([]byte("d"), 1, target, why)
	e.each(1, func(key, _ string) { first = append(first, key) })
	if !slices.Equal(first, []string{"c"}) {
		t.Errorf("first key: got %v, want c", first)
	}
	e.byKey["c"].syncNumber--
	if e.endSync(); len(keys()) != 2 {
		t.Error("second end of a full sync: got entries removed, want unchanged")
	}
	e.add(make([]byte, maxExceptionKey), 1, target, why)
	e.add(make([]byte, maxExceptionKey+1), 1, target, why)
	if len(keys()) != 3 || e.count() != 4 {
		t.Errorf("exceptions: got %d stored, %d counted, want 3 and 4", len(keys()), e.count())
	}
}

// TestExceptionsAreLogged checks that the first new exception is logged with the number of
// exceptions, once a minute.
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
	log() // no new exception
	e.add([]byte("c"), 1, target, errors.New("four"))
	log()
	e.add([]byte("d"), 1, target, errors.New("five"))
	now = now.Add(exceptionLogInterval - 1)
	log()
	if want := "3 a one;4 c four;"; lines != want {
		t.Errorf("log: got %q, want %q", lines, want)
	}
	now = now.Add(1)
	if log(); !strings.HasSuffix(lines, "5 d five;") {
		t.Errorf("log: got %q, want a line for d", lines)
	}
}

// TestOutOfRangeValues checks that a record which does not fit this node's types is stored with its
// owner, logged, and excluded from the comparison of another layout.
func TestOutOfRangeValues(t *testing.T) {
	var out strings.Builder
	r, err := New(Options{Self: table.Owner{Node: "b", Incarnation: 2}, Dial: noDial, Logger: slog.New(slog.NewTextHandler(&out, nil))})
	if err != nil {
		t.Fatalf("new replicator: got error %v, want nil", err)
	}
	old, newer := schematest.OldVersion(), schematest.NewVersion()
	tb := newSizedTable(t, r.opt.Self, old.Key.Size, old.Value.Size, false)
	if err := r.AddMap(testMap, Layout{KeySize: old.Key.Size, ValueSize: old.Value.Size, Schema: old}, tb); err != nil {
		t.Fatalf("add map: got error %v, want nil", err)
	}
	r.SetPeers([]Peer{{Node: "x", Incarnation: 1}})
	s := newInboundStream(r, Peer{Node: "x", Incarnation: 1})
	s.appendSubscriptions(nil, r.localMaps(), time.Now())
	in := s.maps[testMap]
	if err := in.accept(&mapsyncv1.MapAccepted{Map: 1, Generation: 1, Reset_: true, Schema: wire.SchemaToProto(newer)}); err != nil || in.state != StateSyncing {
		t.Fatalf("accept: got error %v, state %s, error of the map %v, want %s", err, in.state, in.err, StateSyncing)
	}
	enc, err := schema.NewEncoder(newer, nil)
	if err != nil {
		t.Fatalf("new encoder: got error %v, want nil", err)
	}
	send := func(from, to uint64, version uint64, packets uint64, op mapsyncv1.Operation, keys ...byte) {
		t.Helper()
		m := stockBatch(1, from, to)
		b := m.GetBatch()
		b.Owners = []*mapsyncv1.Incarnation{{Node: "z", Number: 1}, {Node: "x", Number: 1}}
		for _, k := range keys {
			encoded, err := enc.AppendKey(nil, flow(k))
			if err != nil {
				t.Fatalf("encode key: got error %v, want nil", err)
			}
			d := &mapsyncv1.Delta{Key: encoded, Version: version, Owner: 1, Operation: op}
			if op == mapsyncv1.Operation_OPERATION_UPDATE {
				d.Value = enc.AppendValue(nil, nil, ct{Packets: packets}.new(), &schema.Times{})
			}
			b.Deltas = append(b.Deltas, d)
		}
		if err := s.handle(mustMarshal(t, m)); err != nil || in.state == StateFailed {
			t.Fatalf("handle a message: got error %v, error of the map %v, want none", err, in.err)
		}
	}
	const update = mapsyncv1.Operation_OPERATION_UPDATE
	send(0, 10, 5, 7, update, 1, 2)
	send(10, 20, 6, 1<<40, update, 1, 3) // this node holds an older record of key 1
	if n := in.exceptions.count(); n != 2 || r.Stats().DeltasOutOfRange != 2 {
		t.Errorf("got %d exceptions, %d out of range, want 2 and 2", n, r.Stats().DeltasOutOfRange)
	}
	for _, x := range in.exceptions.byKey {
		if x.owner != (table.Owner{Node: "x", Incarnation: 1}) || x.version != 6 {
			t.Errorf("exception: got %+v, want owner x with incarnation 1, version 6", x)
		}
	}
	if !strings.Contains(out.String(), "a failover to this node loses them") || !strings.Contains(out.String(), "addr=10.0.0.") ||
		!strings.Contains(out.String(), "finish the upgrade") {
		t.Errorf("log: got %q, want the loss at a failover, addr=10.0.0. and the advice to finish the upgrade", out.String())
	}
	// The peer's digest has both records. This node's digest has the older record of key 1.
	var here, want uint64
	tb.View(func(tx *table.Tx) {
		g := tx.Digest("x", nil)
		here = g.VersionSum + in.exceptionsVersionSum(tx, func(node string) bool { return node == "x" })
		owner := table.Owner{Node: "x", Incarnation: 1}
		want = tx.VersionSumOf(owner, 5) + 2*tx.VersionSumOf(owner, 6)
		if n := in.exceptionsVersionSum(tx, func(node string) bool { return node == "z" }); n != 0 {
			t.Errorf("version sum for another node: got %d, want 0", n)
		}
	})
	if here != want {
		t.Error("version sum with exceptions: got another sum than the peer, want equal sums")
	}
	in.exceptions.add([]byte{0xff}, 9, table.Owner{Node: "x", Incarnation: 1}, errGap) // not a valid key
	tb.View(func(tx *table.Tx) {
		g := tx.Digest("x", nil)
		if n := g.VersionSum + in.exceptionsVersionSum(tx, func(node string) bool { return node == "x" }); n != want+tx.VersionSumOf(table.Owner{Node: "x", Incarnation: 1}, 9) {
			t.Error("version sum with an invalid key: got another sum, want only the version of the exception added")
		}
	})
	// A record that now fits, or is deleted, stops being an exception.
	send(20, 30, 7, 8, update, 1)
	send(30, 40, 7, 0, mapsyncv1.Operation_OPERATION_DELETE, 3)
	if n := in.exceptions.count(); n != 1 {
		t.Errorf("exceptions after the records fit: got %d, want 1", n)
	}
}

// TestInterfaceNames checks that names get indexes from 1, and that their number is bounded.
func TestInterfaceNames(t *testing.T) {
	var l interfaceNames
	for i, name := range []string{"eth0", "eth1"} {
		for range 2 {
			if n, ok := l.Index(name); !ok || n != uint32(i+1) {
				t.Errorf("index of %s: got %d, %t, want %d and true", name, n, ok, uint32(i+1))
			}
		}
		if got, ok := l.Name(uint32(i + 1)); !ok || got != name {
			t.Errorf("name of %d: got %q, %t, want %q and true", i+1, got, ok, name)
		}
	}
	for _, index := range []uint32{0, 3} {
		if name, ok := l.Name(index); ok {
			t.Errorf("name of %d: got %q, want none", index, name)
		}
	}
	for i := range maxInterfaceNames - 2 {
		if _, ok := l.Index(fmt.Sprint("x", i)); !ok {
			t.Fatalf("index of name %d: got none, want one", i)
		}
	}
	if n, ok := l.Index("one more"); ok {
		t.Errorf("index of a name above the bound: got %d, want none", n)
	}
	if n, ok := l.Index("eth1"); !ok || n != 2 {
		t.Errorf("index of an existing name: got %d, %t, want 2 and true", n, ok)
	}
	var none wirePrinter
	if got := none.key([]byte{0xab}); got != "key ab" {
		t.Errorf("key without a decoder: got %q, want hex", got)
	}
}
