package table

import (
	"fmt"
	"testing"
)

// TestHighestVersion: the table accepts maxVersion, and refuses versions above it.
func TestHighestVersion(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, second, peer, maxVersion, "k", "v")
	r.remote(Refused, second, peer, maxVersion+1, "l", "v")
	r.remote(Refused, second, peer, 0, "m", "v")
	if st := r.tab.Stats(); st.Refused != 2 || st.RemoteAccepted != 1 {
		t.Errorf("records: got %d refused, %d accepted, want 2 and 1", st.Refused, st.RemoteAccepted)
	}
}

// TestSkewIsRaisedByHigherVersionsAlone: a delta that is not ahead of the clock leaves the skew
// unchanged. The skew still applies to changes that were delayed on their way.
func TestSkewIsRaisedByHigherVersionsAlone(t *testing.T) {
	const late = skewGrace + 1000
	for ahead, want := range map[int64]int64{-5: 100, 0: 100, 1: 1} {
		s := skew{ahead: 100}
		s.raise(ahead, late, 0)
		if got := s.at(0); got != want {
			t.Errorf("ahead by %d: got skew %d, want %d", ahead, got, want)
		}
	}
	s := skew{ahead: 100}
	s.raise(100, 5, 0)
	if s.since != 5 {
		t.Errorf("equal skew: got since %d, want 5", s.since)
	}
	s.raise(1000, 6, 100)
	if s.ahead != 100 || s.since != 6 {
		t.Errorf("skew above the limit: got %+v, want ahead 100 since 6", s)
	}
}

// TestRepairSendsAnotherNodesDelete: a repair makes this node the owner of a tombstone of another
// owner. It resends a tombstone of an earlier incarnation of the live record's owner unchanged.
func TestRepairSendsAnotherNodesDelete(t *testing.T) {
	for _, test := range []struct {
		deleted  Owner
		state    string
		repeated uint64
	}{
		{Owner{"c", 99}, "- v10 c99", 0},
		{Owner{"c", 101}, "- v11 a100", 1},
		{Owner{"b", 50}, "- v11 a100", 1},
		{self, "- v10 a100", 0},
	} {
		r := newRig(t)
		if test.deleted == self {
			r.local(Accepted, 9, "update k v packet 0")
			r.local(Accepted, 10, "delete k - packet 0")
		} else {
			r.remote(Accepted, second, test.deleted, 10, "k", "-")
		}
		r.remote(Accepted, second, peer, 10, "l", "v")
		r.merge(Stale, second, other, 9, "k", "v", RemoteOptions{Repair: true})
		r.want("k", test.state)
		r.wantOrder("lk")
		if n := r.tab.Stats().DeletesResent; n != test.repeated {
			t.Errorf("delete of %v: got %d resent, want %d", test.deleted, n, test.repeated)
		}
	}
}

// TestBarrierFailedWrites: FailedWrites counts the records of a write barrier whose last write failed.
func TestBarrierFailedWrites(t *testing.T) {
	const records = 150
	r := newRig(t)
	for i := range records {
		r.remote(Accepted, second, peer, 10, fmt.Sprint(i), "v")
	}
	d := r.addBarrier()
	failed := func() (n int) {
		r.tab.View(func(tx *Tx) { n = tx.FailedWrites(d) })
		return n
	}
	if n := failed(); n != 0 {
		t.Errorf("failed records before a write: got %d, want 0", n)
	}
	want := 0
	for i := range records {
		rec := r.take()
		if i%7 == 0 || i > records-3 {
			r.applied(rec, errFull)
			want++
		} else {
			r.applied(rec, nil)
		}
		if n := failed(); n != want {
			t.Fatalf("failed records: got %d after %d writes, want %d", n, i+1, want)
		}
	}
	r.requeue(1, 1)
	r.write()
	if n := failed(); n != want-1 {
		t.Errorf("failed records after a retry: got %d, want %d", n, want-1)
	}
}

// TestScanOfAnEmptyKey: a scan treats a key and value of zeros like any other entry.
func TestScanOfAnEmptyKey(t *testing.T) {
	r := newRig(t)
	zeros := make([]byte, keySize)
	scan := func(at int64) {
		r.tab.Update(func(tx *Tx) {
			var reading Reading
			tx.BeginReading(&reading)
			tx.ScannedAll(&reading, at, zeros, make([]byte, valueSize))
			tx.EndReading(&reading)
		})
	}
	scan(second)
	r.want("", " v1000000000 a100")
	scan(2 * second)
	if st := r.tab.Stats(); st.Live != 1 || st.Scanned != 2 || st.ScanFound != 1 || st.LocalUnchanged != 1 {
		t.Errorf("stats: got %+v, want Live 1, Scanned 2, ScanFound 1, LocalUnchanged 1", st)
	}
}

// TestKeysOfOneHash: two keys with the same hash are two records, also in a scan and as compact
// tombstones.
func TestKeysOfOneHash(t *testing.T) {
	r := newRig(t)
	const one, two = "a039", "10680" // found by a search for the seed of newRig
	if r.tab.hash(pad(one, keySize)) != r.tab.hash(pad(two, keySize)) {
		t.Fatal("hashes of the keys: got different hashes, want the same")
	}
	r.local(Accepted, second, "update "+one+" v packet 0")
	r.want(two, "unknown")
	r.tab.Update(func(tx *Tx) {
		var reading Reading
		tx.BeginReading(&reading)
		tx.ScannedAll(&reading, 2*second, pad(two, keySize), pad("v", valueSize))
		tx.EndReading(&reading)
	})
	r.want(two, "v v2000000000 a100")
	r.local(Accepted, 3*second, "delete "+one+" - packet 0")
	r.want(two, "v v2000000000 a100")
	r.takeRereads()
	r.local(Unchanged, 4*second, "delete "+one+" - reread 0")
	r.write()
	r.compact(9*second, 1)
	r.want(one, "- v3000000000 a100")
	r.local(Accepted, 9*second, "delete "+two+" - packet 0")
	r.takeRereads()
	r.local(Unchanged, 10*second, "delete "+two+" - reread 0")
	r.write()
	r.compact(19*second, 2)
	r.want(one, "- v3000000000 a100")
	r.want(two, "- v9000000000 a100")
	r.local(Accepted, 20*second, "update "+two+" w packet 0")
	r.want(one, "- v3000000000 a100")
}
