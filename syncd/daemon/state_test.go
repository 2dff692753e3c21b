package daemon

import "testing"

// Peers take the higher incarnation for the later: it grows also when the wall clock was set back.
func TestIncarnationsGrow(t *testing.T) {
	dir := t.TempDir()
	begin := func(now uint64) uint64 {
		s, err := openState(dir, "n")
		if err != nil {
			t.Fatal(err)
		}
		n, err := s.begin(now)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for _, c := range []struct{ now, want uint64 }{{1000, 1000}, {400, 1001}, {1001, 1002}, {5000, 5000}} {
		if got := begin(c.now); got != c.want {
			t.Errorf("incarnation %d at %d, want %d", got, c.now, c.want)
		}
	}
	// What is remembered of maps and what of incarnations do not lose each other.
	s, err := openState(dir, "n")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.remember("ct", mapIdentity{ID: 7}); err != nil {
		t.Fatal(err)
	}
	if got := begin(0); got != 5001 {
		t.Errorf("incarnation %d after a map was remembered, want 5001", got)
	}
	if s, err = openState(dir, "n"); err != nil || !s.same("ct", mapIdentity{ID: 7}) {
		t.Errorf("the map was forgotten: %v", err)
	}
}
