package table

import (
	"bytes"
	"encoding/binary"
	"testing"
)

// TestDeleteDuringAWrite: the data plane deletes a key, and a reread then finds the value that the
// writer wrote. The key stays deleted if the writer may have written last.
func TestDeleteDuringAWrite(t *testing.T) {
	peers := func(r *rig) { // written and reread
		r.remote(Accepted, second, peer, 10, "k", "v")
		r.write()
		r.tab.Update(func(tx *Tx) { tx.RequestReread(pad("k", keySize)) })
		r.wantRereads("k")
		r.local(Unchanged, second+1, "update k v reread 0")
	}
	own := func(r *rig) { r.local(Accepted, 2*second-1, "update k v packet 0") }
	for name, test := range map[string]struct {
		have  func(*rig)
		event string
		found string
		at    int64
		want  Outcome
		state string
	}{
		"peer's record":          {peers, "delete k - packet 0", "update k v reread 0", 3 * second, Stale, "- v2000000000 a100 dirty"},
		"peer's, another value":  {peers, "delete k - packet 0", "update k w reread 0", 3 * second, Accepted, "w v3000000000 a100"},
		"peer's, written anew":   {peers, "delete k - packet 0", "update k v packet 0", 3 * second, Accepted, "v v3000000000 a100"},
		"peer's, read before":    {peers, "delete k - packet 0", "update k v reread 0", 2*second - 1, Stale, "- v2000000000 a100"},
		"peer's, updated":        {peers, "update k w packet 0", "update k w reread 0", 3 * second, Unchanged, "w v2000000000 a100"},
		"own record, two CPUs":   {own, "delete k - packet 1", "update k v reread 0", 3 * second, Accepted, "v v3000000000 a100"},
		"own, another value":     {own, "delete k - packet 1", "update k w reread 0", 3 * second, Accepted, "w v3000000000 a100"},
		"own record, much later": {own, "delete k - packet 0", "update k v reread 0", 3 * second, Accepted, "v v3000000000 a100"},
	} {
		r := newRig(t)
		test.have(r)
		r.local(Accepted, 2*second, test.event)
		r.takeRereads()
		r.local(test.want, test.at, test.found)
		if got := r.state("k"); got != test.state {
			t.Errorf("%s: %q, want %q", name, got, test.state)
		}
	}
}

// TestDeleteFoundByAReading: the table accepts the value of a reading that follows a reading without
// the key.
func TestDeleteFoundByAReading(t *testing.T) {
	r := newRig(t)
	r.local(Accepted, second, "update k v packet 0")
	r.tab.Update((*Tx).Refill)
	r.write()
	r.read(second+1).found(Accepted, "k", "-")
	r.wantRereads("k")
	r.read(2*second).found(Accepted, "k", "v")
	r.want("k", "v v2000000000 a100")
}

// TestTakeoverReplicatesAtOnce: the table replicates a local update of a peer's record immediately. A
// later reread does not refresh it.
func TestTakeoverReplicatesAtOnce(t *testing.T) {
	r := newRig(t, significant)
	r.remote(Accepted, second, peer, Version(second), "k", "v")
	r.write()
	r.local(Accepted, 2*second, "update k w packet 0")
	r.wantRereads("k")
	r.local(Unchanged, 3*second, "update k w reread 0")
	r.local(Unchanged, 100*second, "update k w reread 0")
	if n := r.tab.Stats().Refreshed; n != 0 {
		t.Errorf("refreshed records: got %d, want 0", n)
	}
}

// TestRereadOfAnInsignificantChange: a reread of the value of a live record does not make it dirty.
func TestRereadOfAnInsignificantChange(t *testing.T) {
	r := newRig(t, significant)
	local := tail(t, 1, second)
	r.do(Accepted, func(tx *Tx) Outcome { return tx.Local(local) })
	r.rereadTail(Unchanged, 2*second, 2)
	r.tab.Update(func(tx *Tx) { tx.RequestReread(pad("k", keySize)) })
	r.wantRereads("k")
	r.rereadTail(Unchanged, 3*second, 2)
	if st := r.tab.Stats(); st.Dirty != 0 || st.Head != 1 {
		t.Errorf("dirty records: got %d, head %d, want 0 and 1", st.Dirty, st.Head)
	}
}

// TestRereadAfterATakeover: the writer wrote the peer's value before the local change. A later reread
// counts.
func TestRereadAfterATakeover(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, second, peer, 10, "k", "v")
	r.write()
	r.local(Accepted, 2*second, "update k w packet 0")
	r.local(Accepted, 9*second, "update k x reread 0")
	r.want("k", "x v9000000000 a100")
}

// TestRereadWhileDirty: a key becomes dirty before its pending reread is taken. The table rereads it
// after the write.
func TestRereadWhileDirty(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, second, peer, 10, "k", "v")
	r.write()
	r.tab.Update(func(tx *Tx) { tx.RequestReread(pad("k", keySize)) })
	r.remote(Accepted, second, peer, 11, "k", "w")
	r.wantRereads("")
	if n := r.tab.Stats().PendingRereads; n != 1 {
		t.Errorf("pending rereads: got %d, want 1", n)
	}
	r.write()
	r.wantRereads("k")
}

// TestReleasedEntry: a write of the same value by the data plane takes over the entry. A reread that
// finds the value does not. A later eviction or reread without the key ends the release.
func TestReleasedEntry(t *testing.T) {
	for name, test := range map[string]struct {
		events   []event
		state    string
		released int
		reread   string
	}{
		"found":                 {[]event{{Unchanged, 9 * second, "update k v reread 0"}}, "- v10 b100", 1, ""},
		"found and used":        {[]event{{Accepted, 9 * second, "update k v packet 0"}}, "v v9000000000 a100", 0, ""},
		"found changed":         {[]event{{Accepted, 9 * second, "update k w reread 0"}}, "w v9000000000 a100", 0, ""},
		"absent":                {[]event{{Unchanged, 9 * second, "delete k - reread 0"}}, "- v10 b100", 0, ""},
		"absent before":         {[]event{{Stale, 1*second - 1, "delete k - reread 0"}}, "- v10 b100", 1, "k"},
		"absent before a find":  {[]event{{Unchanged, 9 * second, "update k v reread 0"}, {Stale, 9*second - 1, "delete k - reread 0"}}, "- v10 b100", 1, "k"},
		"absent after a find":   {[]event{{Unchanged, 9 * second, "update k v reread 0"}, {Unchanged, 9 * second, "delete k - reread 0"}}, "- v10 b100", 0, ""},
		"evicted":               {[]event{{Ignored, 9 * second, "evict k - packet 0"}}, "- v10 b100", 0, ""},
		"evicted before":        {[]event{{Ignored, 1*second - 1, "evict k - packet 0"}}, "- v10 b100", 1, "k"},
		"evicted before, twice": {[]event{{Ignored, 9 * second, "evict k - packet 0"}, {Ignored, second, "evict k - packet 0"}}, "- v10 b100", 0, ""},
	} {
		r := newRig(t, lru(8, 8))
		r.remote(Accepted, second, peer, 10, "k", "v")
		r.write()
		r.tab.Update(func(tx *Tx) { tx.RequestReread(pad("k", keySize)) })
		r.wantRereads("k")
		r.local(Unchanged, second+1, "update k v reread 0")
		r.expired(Accepted, 2*second, peer, 10, "k")
		r.wantExpired("k", true)
		for _, e := range test.events {
			r.local(e.want, e.at, e.what)
		}
		if got := r.state("k"); got != test.state {
			t.Errorf("%s: record: got %q, want %q", name, got, test.state)
		}
		if n, keys := r.tab.Stats().Released, r.takeRereads(); n != test.released || (test.state[0] == '-' && keys != test.reread) {
			t.Errorf("%s: got %d released, rereads %q, want %d, and rereads %q of a deleted record",
				name, n, keys, test.released, test.reread)
		}
	}
}

// TestBatchOfNewKeysIsReread: the queue has room for the keys of four calls of the largest size, each once and in order.
// Once it is empty, it keeps little memory.
func TestBatchOfNewKeysIsReread(t *testing.T) {
	const size, perCall = 48, 1 << 20 / 48 // more than the 20,000 keys of a large batch
	r := newRig(t, func(o *Options) { o.KeySize = size })
	var want []byte
	for i := range uint64(4 * perCall) {
		key := binary.BigEndian.AppendUint64(make([]byte, size-8, size), i)
		want = append(want, key...)
		r.tab.Update(func(tx *Tx) { tx.RequestReread(key) })
	}
	if n := r.tab.Stats().RereadsDropped; n != 0 {
		t.Errorf("dropped rereads of %d keys of %d bytes: got %d, want 0", 4*perCall, size, n)
	}
	got := make([]byte, len(want))
	r.tab.Update(func(tx *Tx) {
		for at := 0; at < len(got); {
			n := tx.TakeRereads(got[at:min(len(got), at+1000*size)])
			if n == 0 {
				t.Fatalf("rereads: got %d, want %d", at/size, 4*perCall)
			}
			at += n * size
		}
	})
	if !bytes.Equal(got, want) {
		t.Error("rereads: got other keys, want each key in the order of the requests")
	}
	if n := r.tab.unknownRereads.bytes(); n > keptBytes {
		t.Errorf("memory of the empty queue: got %d bytes, want at most %d", n, keptBytes)
	}
}
