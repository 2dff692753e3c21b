package table

import (
	"errors"
	"fmt"
	"testing"
)

// wider returns a layout whose values have an additional first byte.
func wider(bad string) (Options, Conversion) {
	return Options{KeySize: keySize, ValueSize: valueSize + 1, Seed: 1}, Conversion{
		Key: func(dst, src []byte) error { copy(dst, src); return nil },
		Value: func(dst, src []byte) error {
			if text(src) == bad {
				return errors.New("it does not fit")
			}
			dst[0] = '+'
			copy(dst[1:], src)
			return nil
		},
	}
}

func (r *rig) convert(bad string) (*rig, Converted) {
	r.Helper()
	o, how := wider(bad)
	tab, done, err := r.tab.Convert(o, how)
	if err != nil {
		r.Fatal(err)
	}
	checkInvariants(r, tab)
	return &rig{T: r.T, tab: tab, writer: tab.NewCursor(0)}, done
}

func TestConvertKeepsRecordsAndClock(t *testing.T) {
	r := newRig(t, sameMap)
	r.remote(Accepted, 1000, peer, 9000, "p", "x") // a clock 8000 ns ahead
	r.local(Accepted, 2000, "update k v packet 0")
	r.remote(Accepted, 2000, older, 1500, "e", "x")
	r.local(Accepted, 2100, "update d v packet 0")
	r.local(Accepted, 2200, "delete d - packet 0")
	r.remote(Accepted, 2300, other, 2300, "f", "-")
	r.load(Accepted, "u", "v")
	r.setGone("c", true)
	r.write()
	before := r.order()
	to, done := r.convert("")
	if done.Failed != 0 || done.Records != 6 {
		t.Fatalf("convert: got %+v, want 6 records, none failed", done)
	}
	to.wantOrder(before)
	to.want("p", "+x v9000 b100 dirty")
	to.want("k", "+v v10000 a100 dirty")
	to.want("d", "- v10200 a100")
	to.want("f", "- v2300 c100")
	to.want("u", "+v v0 a100 dirty")
	a, b := r.tab.Stats(), to.tab.Stats()
	if a.Live != b.Live || a.Tombstones != b.Tombstones || b.Unversioned != 1 || b.Applied != 0 || b.Floor != 0 {
		t.Fatalf("stats: old %+v\nnew %+v", a, b)
	}
	if keys := to.write(); keys != "pk" && keys != "pke" {
		t.Fatalf("written keys: got %q, want p, k and optionally e", keys)
	}
	to.adopt()
	if keys := to.write(); keys != "u" {
		t.Fatalf("written keys: got %q, want u", keys)
	}
	// The table also keeps the clock, the gone nodes and Options.SameMap.
	to.tab.Update(func(tx *Tx) {
		if !tx.t.owners.gone["c"] || tx.t.skew != r.tab.skew || !tx.t.opt.SameMap {
			t.Errorf("converted table: got gone %v, skew %v, same map %v, want those of the old table", tx.t.owners.gone, tx.t.skew, tx.t.opt.SameMap)
		}
		for tx.Expire(DefaultTombstoneTTL.Nanoseconds()+2250, 10) {
		}
	})
	if n := to.tab.Stats().Tombstones; n != 1 {
		t.Fatalf("tombstones: got %d, want the younger one", n)
	}
}

func TestConvertSkipsInconvertibleValues(t *testing.T) {
	r := newRig(t)
	r.local(Accepted, 1000, "update k bad packet 0")
	r.local(Accepted, 1000, "update l v packet 0")
	r.local(Accepted, 1000, "update m bad packet 0")
	to, done := r.convert("bad")
	if done.Failed != 2 || done.Records != 1 || done.Err == nil {
		t.Fatalf("Convert: got %+v, want 2 failed, 1 converted and an error", done)
	}
	to.wantOrder("l")
	if _, _, err := r.tab.Convert(Options{KeySize: 1}, Conversion{}); !errors.Is(err, ErrOptions) {
		t.Fatalf("Convert without a value size: got error %v, want an error with ErrOptions", err)
	}
}

// The table accepts changes during the conversion. The conversion reads a changed record again with
// its new state. It keeps records that are adopted or taken over meanwhile.
func TestConvertDuringChanges(t *testing.T) {
	r := newRig(t)
	const n = 3 * convertChunk
	for i := range n {
		r.local(Accepted, int64(1000+i), fmt.Sprintf("update %d v packet 0", i))
	}
	for i := range 50 {
		r.load(Accepted, fmt.Sprintf("u%d", i), "v")
	}
	o, how := wider("")
	count := 0
	inner := how.Key
	how.Key = func(dst, src []byte) error {
		count++
		return inner(dst, src)
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			r.tab.Update(func(tx *Tx) {
				c := parseChange(t, fmt.Sprintf("update %d w%d packet 0", i%n, i%7), second+int64(i))
				tx.Local(c)
				tx.Adopt(1)
			})
		}
	}()
	tab, done, err := r.tab.Convert(o, how)
	close(stop)
	<-stopped
	if err != nil || done.Failed != 0 || done.Records != n+50 {
		t.Fatalf("Convert: got %+v, error %v after %d records, want %d converted, 0 failed and nil", done, err, count, n+50)
	}
	checkInvariants(t, tab)
	to := &rig{T: t, tab: tab}
	// Each record of the new table is the current or an earlier state of the record in the old table.
	for i := range n {
		key := fmt.Sprint(i)
		var was, is Record
		r.tab.View(func(tx *Tx) { tx.Get(pad(key, keySize), &was) })
		to.tab.View(func(tx *Tx) {
			if !tx.Get(pad(key, keySize), &is) || is.Version > was.Version || is.Version == 0 {
				t.Errorf("%s: old %+v, got %+v, want the old record or an earlier one", key, was, is)
			}
		})
	}
}

// Convert skips a key that does not fit the new layout, whatever its value.
func TestConvertSkipsInconvertibleKeys(t *testing.T) {
	r := newRig(t)
	for _, key := range []string{"k", "bad", "l"} {
		r.remote(Accepted, 0, peer, 1000, key, "v")
	}
	o, how := wider("")
	reason := errors.New("no such key here")
	how.Key = func(dst, src []byte) error {
		if text(src) == "bad" {
			return reason
		}
		copy(dst, src)
		return nil
	}
	tab, done, err := r.tab.Convert(o, how)
	if err != nil || done.Records != 2 || done.Failed != 1 || !errors.Is(done.Err, reason) {
		t.Fatalf("Convert: got %+v, error %v, want 2 records, 1 failed and the reason", done, err)
	}
	to := &rig{T: t, tab: tab}
	to.wantOrder("kl")
}

// Convert counts the records that do not fit into the new table, and reports the reason.
func TestConvertIntoAFullTable(t *testing.T) {
	r := newRig(t)
	for _, key := range []string{"k", "l", "m"} {
		r.remote(Accepted, 0, peer, 1000, key, "v")
	}
	o, how := wider("")
	o.MaxRecords = 2
	_, done, err := r.tab.Convert(o, how)
	if err != nil || done.Records != 2 || done.Failed != 1 || !errors.Is(done.Err, errNoRoom) {
		t.Errorf("Convert: got %+v, error %v, want 2 records and 1 without room", done, err)
	}
}

// The tombstones of a converted table expire in the order of their deletion times, not in the order of
// the records.
func TestConvertedTombstonesExpireInTime(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, 5000, peer, 1000, "k", "-")
	r.remote(Accepted, 1000, peer, 1001, "l", "-")
	o, how := wider("")
	o.TombstoneTTL = 1000
	tab, _, err := r.tab.Convert(o, how)
	if err != nil {
		t.Fatal(err)
	}
	to := &rig{T: t, tab: tab, writer: tab.NewCursor(0)}
	to.write()
	tab.Update(func(tx *Tx) { tx.Expire(3000, 9) })
	to.wantOrder("k")
}
