package table

import "testing"

// TestRecordSet: a set has the records that were added, and no others.
func TestRecordSet(t *testing.T) {
	var set RecordSet
	if set.Has(1) {
		t.Error("empty set: got record 1, want none")
	}
	for _, r := range []Ref{1, 63, 64, 700} {
		set.Add(r)
	}
	for r := range Ref(1000) {
		if want := r == 1 || r == 63 || r == 64 || r == 700; set.Has(r) != want {
			t.Errorf("record %d in the set: got %t, want %t", r, set.Has(r), want)
		}
	}
}
