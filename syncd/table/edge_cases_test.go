package table

import (
	"fmt"
	"testing"
)

// TestStringOfUnknownValues: String returns "unknown" for a number without a name.
func TestStringOfUnknownValues(t *testing.T) {
	for _, test := range []struct {
		got  fmt.Stringer
		want string
	}{
		{OpEvict, "evict"},
		{OpEvict + 1, "unknown"},
		{ContextReread, "reread"},
		{ContextReread + 1, "unknown"},
		{Ignored, "ignored"},
		{Ignored + 1, "unknown"},
	} {
		if got := test.got.String(); got != test.want {
			t.Errorf("%q, want %q", got, test.want)
		}
	}
}

// TestEarlyDeleteRequestsReread: the table rereads a key if another CPU deleted it at about the same
// time.
func TestEarlyDeleteRequestsReread(t *testing.T) {
	r := newRig(t)
	place := func(k string) uint32 { return r.tab.hash(pad(k, keySize)) >> (32 - earlyDeleteBits) }
	other := "k0"
	for i := 1; place(other) != place("k"); i++ {
		other = fmt.Sprint("k", i)
	}
	for name, test := range map[string]struct {
		deletes []string
		after   int64
		reread  string
	}{
		"another CPU":                {[]string{"delete k - packet 1"}, 0, "k"},
		"another CPU, same time":     {[]string{"delete k - packet 1"}, timestampMargin, "k"},
		"another CPU, much later":    {[]string{"delete k - packet 1"}, timestampMargin + 1, ""},
		"the same CPU":               {[]string{"delete k - packet 0"}, 0, ""},
		"the same CPU after another": {[]string{"delete k - packet 1", "delete k - packet 0"}, 0, "k"},
		"another CPU after the same": {[]string{"delete k - packet 0", "delete k - packet 1"}, 0, "k"},
		"another key in its place":   {[]string{"delete " + other + " - packet 1"}, 0, ""},
	} {
		r := newRig(t)
		for _, e := range test.deletes {
			r.local(Unchanged, second, e)
		}
		r.local(Accepted, second+test.after, "update k v packet 0")
		if got := r.takeRereads(); got != test.reread {
			t.Errorf("%s: got rereads %q, want %q", name, got, test.reread)
		}
	}
}

// TestAdoptReturnsMore: Adopt returns true as long as there are records to adopt.
func TestAdoptReturnsMore(t *testing.T) {
	r := newRig(t)
	r.load(Accepted, "k", "v")
	r.load(Accepted, "l", "v")
	for i, want := range []bool{true, false, false} {
		r.tab.Update(func(tx *Tx) {
			if more := tx.Adopt(1); more != want {
				t.Errorf("Adopt call %d: got more %v, want %v", i, more, want)
			}
		})
	}
}

// TestLoadRefusesSizes: Load refuses and counts an entry whose key or value has the wrong size.
func TestLoadRefusesSizes(t *testing.T) {
	r := newRig(t)
	r.do(Refused, func(tx *Tx) Outcome { return tx.Load(pad("k", keySize)[1:], pad("v", valueSize)) })
	r.do(Refused, func(tx *Tx) Outcome { return tx.Load(pad("k", keySize), pad("v", valueSize)[1:]) })
	if st := r.tab.Stats(); st.Refused != 2 || st.Live != 0 {
		t.Errorf("entries: got %d refused, %d records, want 2 and 0", st.Refused, st.Live)
	}
}

// TestBarrierSkipsUnversionedRecords: a refill makes unversioned records dirty. A write barrier does
// not cover them.
func TestBarrierSkipsUnversionedRecords(t *testing.T) {
	r := newRig(t)
	r.load(Accepted, "u", "v")
	r.remote(Accepted, second, peer, 10, "k", "v")
	r.tab.Update((*Tx).Refill)
	r.wantPendingWrites(r.addBarrier(), 1)
}

// TestRemoveSelects: each field of Selection selects its own kind of record. The version of the delete
// is the version of the record plus 1.
func TestRemoveSelects(t *testing.T) {
	for name, test := range map[string]struct {
		sel     Selection
		removed int
	}{
		"nothing":    {Selection{}, 0},
		"other node": {Selection{Owner: "c"}, 0},
		"owner":      {Selection{Owner: "b"}, 1},
		"orphaned":   {Selection{Orphaned: true}, 1},
		"unfit":      {Selection{Failed: true}, 0},
	} {
		r := newRig(t, func(o *Options) { o.MaxSkew = 1 })
		r.remote(Accepted, second, peer, Version(1000*second), "k", "v")
		r.write()
		r.setGone("b", true)
		if n := r.remove(2*second, test.sel, 9); n != test.removed {
			t.Errorf("%s: %d removed, want %d", name, n, test.removed)
		}
		if r.tab.now != 2*second {
			t.Errorf("%s: clock: got %d, want 2 s", name, r.tab.now)
		}
		if test.removed > 0 {
			r.want("k", fmt.Sprintf("- v%d a100 dirty", 1000*second+1))
		}
	}
}

// TestKeyMaskOfZeros: all keys have the same hash under a mask of zeros.
func TestKeyMaskOfZeros(t *testing.T) {
	r := newRig(t, func(o *Options) { o.ComparedKey = make([]byte, keySize) })
	if a, b := r.tab.digester.hashKey(pad("k", keySize)), r.tab.digester.hashKey(pad("l", keySize)); a != b {
		t.Errorf("hashes: got %x and %x, want equal hashes", a, b)
	}
}

// TestUpdateOfDisplacedRecord: an update at the time of the displacement is written again. A later
// update and a delete are not. The clock of the peer is 2000 ns ahead.
func TestUpdateOfDisplacedRecord(t *testing.T) {
	for _, test := range []struct {
		at    int64
		what  string
		state string
	}{
		{3000, "update k w packet 0", "w v5000 a100 dirty"},
		{3001, "update k w packet 0", "w v5001 a100"},
		{2500, "delete k - packet 0", "- v4500 a100"},
	} {
		r := newRig(t)
		r.remote(Accepted, 0, peer, 1000, "k", "v")
		r.write()
		r.remote(Accepted, 0, peer, 2000, "m", "v")
		victim, _ := r.displace(r.refuse()[0])
		r.tab.Update(func(tx *Tx) { tx.Displaced(victim.Ref, 3000) })
		r.local(Accepted, test.at, test.what)
		if got := r.state("k"); got != test.state {
			t.Errorf("%s at %d: %q, want %q", test.what, test.at, got, test.state)
		}
	}
}
