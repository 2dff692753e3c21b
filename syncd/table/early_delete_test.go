package table

import "testing"

// TestDeleteBeforeRecordOfNewMap: an event reports the delete of a key that the table has no record of, during the initial
// sync. The map held the key, so the record of an earlier incarnation that a peer sends later does not bring it back. The
// result does not depend on the order of the records, nor on a map that replaces the loaded one.
func TestDeleteBeforeRecordOfNewMap(t *testing.T) {
	for _, options := range []Options{{}, {LRU: true}, {SameMap: true}, {SameMap: true, LRU: true}} {
		for _, c := range []struct {
			event, want string // of the key k
			sent        []receipt
		}{
			{"delete k - packet 0", "- v2001 a100", []receipt{{older, 2000, "w"}}},
			{"delete k - syscall 0", "- v2001 a100", []receipt{{older, 2000, "w"}}},
			{"delete k - packet 0", "- v2001 a100", []receipt{{older, 2000, "w"}, {peer, 1000, "p"}}},
			{"delete k - packet 0", "- v3001 a100", []receipt{{older, 2000, "-"}, {older, 3000, "w"}}},
			// Another node has the later record.
			{"delete k - packet 0", "p v3000 b100", []receipt{{older, 2000, "w"}, {peer, 3000, "p"}}},
		} {
			permutations(c.sent, 0, func(sent []receipt) {
				r := newRig(t, func(o *Options) { o.SameMap, o.LRU = options.SameMap, options.LRU })
				r.begin("-")
				r.tab.Update(func(tx *Tx) { tx.Refill() })
				r.local(Unchanged, 1000, c.event)
				for _, s := range sent {
					r.receive(s)
				}
				if r.write(); r.state("k") != c.want {
					t.Errorf("options %+v, %q, then %v: got %q, want %q", options, c.event, sent, r.state("k"), c.want)
				}
			})
		}
	}
}

// TestDeleteBeforeRecordNeedsEvidence: the record of an earlier incarnation refills a new map if nothing shows that the map
// held the key and lost it: a reread that does not find the key, an eviction, a delete of another key, or a delete before
// another write.
func TestDeleteBeforeRecordNeedsEvidence(t *testing.T) {
	for event, want := range map[string]string{
		"delete k - reread 0": "w v2000 a90",
		"evict k - packet 0":  "w v2000 a90",
		"delete x - packet 0": "w v2000 a90",
	} {
		r := newRig(t, func(o *Options) { o.LRU = true })
		r.begin("-")
		r.tab.Update(func(tx *Tx) { tx.Local(parseChange(t, event, 1000)) })
		r.receive(receipt{older, 2000, "w"})
		if r.write(); r.state("k") != want {
			t.Errorf("after %q: got %q, want %q", event, r.state("k"), want)
		}
	}

	rewritten := newRig(t)
	rewritten.begin("-")
	rewritten.local(Unchanged, 1000, "delete k - packet 0")
	rewritten.local(Accepted, 1500, "update k x packet 0")
	rewritten.receive(receipt{older, 2000, "w"})
	if rewritten.write(); rewritten.state("k") != "x v2001 a100" {
		t.Errorf("delete and write: got %q, want the written value", rewritten.state("k"))
	}
}

// TestDeleteWithoutOrderBeforeRecord: an event reports a delete by bpf(2) without its order with other changes. The reread
// decides whether the key is in the map.
func TestDeleteWithoutOrderBeforeRecord(t *testing.T) {
	for _, found := range []bool{false, true} {
		r := newRig(t, func(o *Options) { o.LRU = true })
		r.begin("-")
		r.tab.Update(func(tx *Tx) { tx.RequestRereadOfDelete(pad("k", keySize)) })
		want := "- v2001 a100"
		if found {
			r.local(Accepted, 1500, "update k x reread 0")
			want = "x v2001 a100"
		}
		r.receive(receipt{older, 2000, "w"})
		if r.write(); r.state("k") != want {
			t.Errorf("found %v: got %q, want %q", found, r.state("k"), want)
		}
	}
}
