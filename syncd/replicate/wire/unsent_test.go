package wire

import (
	"errors"
	"math"
	"testing"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/schema"
	"mapsync/syncd/table"
)

// linkTable returns a table and an encoder whose keys and values each have a number and an interface. Only the
// interface 1 has a name.
func linkTable(t *testing.T, opt EncoderOptions, change ...func(*table.Options)) (*table.Table, *Encoder, *[]error) {
	t.Helper()
	field := func(name string, number int, kind schema.Kind) schema.Field {
		f := schema.Field{Name: name, Number: number, Offset: 4 * (number - 1), Size: 4, Kind: kind, Type: "__u32"}
		if kind == schema.KindIfname {
			f.Roles = schema.RoleIfindex
		}
		return f
	}
	message := func() *schema.Message {
		return &schema.Message{Name: "m", Size: 8, Fields: []schema.Field{field("n", 1, schema.KindUint), field("i", 2, schema.KindIfname)}}
	}
	s := &schema.Schema{Map: testMap, Key: message(), Value: message()}
	enc, err := schema.NewEncoder(s, oneLink{})
	if err != nil {
		t.Fatal(err)
	}
	self := table.Owner{Node: "a", Incarnation: 1}
	o := table.Options{Self: self, KeySize: 8, ValueSize: 8}
	for _, fn := range change {
		fn(&o)
	}
	tb, err := table.New(o)
	if err != nil {
		t.Fatal(err)
	}
	var failed []error
	opt.Index, opt.Origin, opt.Schema = 1, self, enc
	opt.Unencodable = func(_ *table.Tx, _ *table.Record, err error) { failed = append(failed, err) }
	return tb, NewEncoder(opt), &failed
}

type oneLink struct{}

func (oneLink) Name(index uint32) (string, bool) { return "eth0", index == 1 }
func (oneLink) Index(name string) (uint32, bool) { return 1, name == "eth0" }

// deltasOf returns the deltas of all records.
func deltasOf(t *testing.T, tb *table.Table, e *Encoder) []*mapsyncv1.Delta {
	t.Helper()
	c := tb.NewCursor(0)
	defer c.Close()
	return encodeAll(t, e, tb, c).GetDeltas()
}

// TestUnsentKeysAreNamed: a record that cannot be encoded is sent as its key, without the fields that cannot be
// encoded. Observers receive a value without the name of its interface.
func TestUnsentKeysAreNamed(t *testing.T) {
	for name, test := range map[string]struct {
		opt        EncoderOptions
		key, value [2]byte // number and interface
		deleted    bool
		want       mapsyncv1.Operation // 0: nothing is sent
		failed     bool
	}{
		"all fields":                       {EncoderOptions{}, [2]byte{7, 1}, [2]byte{8, 1}, false, mapsyncv1.Operation_OPERATION_UPDATE, false},
		"interface of the key":             {EncoderOptions{}, [2]byte{7, 2}, [2]byte{8, 1}, false, mapsyncv1.Operation_OPERATION_UNSENT, true},
		"interface of the value":           {EncoderOptions{}, [2]byte{7, 1}, [2]byte{8, 2}, false, mapsyncv1.Operation_OPERATION_UNSENT, true},
		"delete":                           {EncoderOptions{}, [2]byte{7, 2}, [2]byte{8, 1}, true, 0, true},
		"resent":                           {EncoderOptions{Resent: true}, [2]byte{7, 1}, [2]byte{8, 2}, false, mapsyncv1.Operation_OPERATION_UNSENT, true},
		"requested":                        {EncoderOptions{Requested: true}, [2]byte{7, 1}, [2]byte{8, 2}, false, 0, true},
		"observer, interface of the value": {EncoderOptions{Observe: true}, [2]byte{7, 1}, [2]byte{8, 2}, false, mapsyncv1.Operation_OPERATION_UPDATE, false},
		"observer, interface of the key":   {EncoderOptions{Observe: true}, [2]byte{7, 2}, [2]byte{8, 1}, false, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			tb, e, failed := linkTable(t, test.opt)
			k, v := []byte{test.key[0], 0, 0, 0, test.key[1], 0, 0, 0}, []byte{test.value[0], 0, 0, 0, test.value[1], 0, 0, 0}
			tb.Update(func(tx *table.Tx) {
				tx.Local(&table.Change{Key: k, Value: v, Time: 1000})
				if test.deleted {
					tx.Local(&table.Change{Key: k, Op: table.OpDelete, Time: 2000})
				}
			})
			deltas := deltasOf(t, tb, e)
			if (len(*failed) > 0) != test.failed || e.Unencodable() != len(*failed) || (test.failed && !errors.Is((*failed)[0], schema.ErrLink)) {
				t.Errorf("records that cannot be encoded: got %v, %d counted, want one: %t", *failed, e.Unencodable(), test.failed)
			}
			if test.want == 0 {
				if len(deltas) != 0 {
					t.Errorf("deltas: got %v, want none", deltas)
				}
				return
			}
			if len(deltas) != 1 || deltas[0].GetOperation() != test.want || (test.want == mapsyncv1.Operation_OPERATION_UNSENT) != (deltas[0].GetValue() == nil) {
				t.Fatalf("deltas: got %v, want one %s", deltas, test.want)
			}
			if got := deltas[0].GetKey(); len(got) < 2 || got[1] != test.key[0] {
				t.Errorf("key: got %x, want the number %d", got, test.key[0])
			}
		})
	}
}

// TestInferredDeletesAreNotSent: neither peers nor observers receive an inferred tombstone.
func TestInferredDeletesAreNotSent(t *testing.T) {
	for _, opt := range []EncoderOptions{{}, {Resent: true}, {Requested: true}, {Observe: true}} {
		tb, e, _ := linkTable(t, opt)
		peer := table.Owner{Node: "b", Incarnation: 1}
		tb.Update(func(tx *table.Tx) {
			for i := range byte(2) {
				d := &table.Delta{Key: []byte{i, 0, 0, 0, 0, 0, 0, 0}, Value: make([]byte, 8), Version: 10, Owner: tx.Intern(peer)}
				if o := tx.Remote(d, 1000, table.RemoteOptions{}); o != table.Accepted {
					t.Fatalf("merge: got %s, want %s", o, table.Accepted)
				}
			}
		})
		c := tb.NewCursor(0)
		tb.Update(func(tx *table.Tx) {
			a := table.Absence{Peer: peer, Acknowledged: math.MaxUint64, Before: tx.Head() + 1, Covered: func(key, _ []byte) bool { return key[0] == 1 }}
			if n, _ := tx.Sweep(&a, 2000, c, 9); n != 1 {
				t.Fatalf("swept records: got %d, want 1", n)
			}
		})
		c.Close()
		if deltas := deltasOf(t, tb, e); len(deltas) != 1 || deltas[0].GetOperation() != mapsyncv1.Operation_OPERATION_UPDATE {
			t.Errorf("deltas with %+v: got %v, want the live record only", opt, deltas)
		}
	}
}

// TestUndecidedRecordsAreNamed: a peer has restored a record of this node, whose map lacks the entry. Peers receive its key
// alone before the table has decided whether the entry has ended, so that they do not take it for deleted.
func TestUndecidedRecordsAreNamed(t *testing.T) {
	for _, opt := range []EncoderOptions{{}, {Resent: true}, {Requested: true}, {Observe: true}} {
		tb, e, _ := linkTable(t, opt, func(o *table.Options) {
			o.Self.Incarnation, o.SameMap, o.HoldClears, o.AdoptVersion = 2, true, true, table.RestoredVersions
		})
		tb.Update(func(tx *table.Tx) {
			tx.DelayAbsent()
			d := &table.Delta{Key: make([]byte, 8), Value: make([]byte, 8), Version: 10, Owner: tx.Intern(table.Owner{Node: "a", Incarnation: 1})}
			if o := tx.Remote(d, 1000, table.RemoteOptions{}); o != table.Accepted {
				t.Fatalf("merge: got %s, want %s", o, table.Accepted)
			}
		})
		deltas := deltasOf(t, tb, e)
		want := !opt.Observe && !opt.Requested
		if named := len(deltas) == 1 && deltas[0].GetOperation() == mapsyncv1.Operation_OPERATION_UNSENT && deltas[0].GetValue() == nil; named != want || !named && len(deltas) > 0 {
			t.Errorf("deltas with %+v: got %v, want the key: %t", opt, deltas, want)
		}
		tb.Update(func(tx *table.Tx) {
			tx.DecideAbsent()
			for tx.SettleDeletes(1000, nil, 1) {
			}
		})
		if deltas := deltasOf(t, tb, e); len(deltas) != 1 || deltas[0].GetOperation() != mapsyncv1.Operation_OPERATION_DELETE {
			t.Errorf("deltas with %+v after the decision: got %v, want the delete", opt, deltas)
		}
	}
}
