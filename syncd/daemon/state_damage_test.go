package daemon

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"mapsync/syncd/table"
)

// TestDamagedState: after a change of any bit of the file, the state is that of the file before, or none.
func TestDamagedState(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "n.state.json")
	saved, _ := stateIn(t, dir)
	saved.nextIncarnation(1000, time.Hour)
	saved.setIdentity("ct", mapIdentity{ID: 7, Name: "ct"}, &table.Unheld{Seed: 1, Hashes: make([]byte, 8)})
	saved.setDrain(&drainState{Since: time.Unix(1000, 0), Forced: true})
	saved.saveChanges()
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	refused := 0
	for bit := range 8 * len(whole) {
		damaged := bytes.Clone(whole)
		damaged[bit/8] ^= 1 << (bit % 8)
		if err := os.WriteFile(path, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		s, log := stateIn(t, dir)
		if s.stats().ReadFailures == 0 {
			if diff := cmp.Diff(saved.file, s.file); diff != "" {
				t.Errorf("bit %d changed: got another state (-want +got):\n%s\nof %s", bit, diff, damaged)
			}
			continue
		}
		refused++
		if s.file.Incarnation != 0 || len(s.file.Maps) != 0 || s.file.Drain != nil || !strings.Contains(log.String(), "run syncd drain again") {
			t.Errorf("bit %d changed: got the state %+v, want none, and the remedy in the log\n%s", bit, s.file, log)
		}
	}
	if want := 8 * (len(whole) - len(checksumField)); refused < want {
		t.Errorf("damaged files that are refused: got %d, want at least %d", refused, want)
	}
}

// FuzzStateFile: any content of the file is refused, or read as a state that can be saved again.
func FuzzStateFile(f *testing.F) {
	whole, err := (&stateFile{
		BootID: "b", Incarnation: 1000, Maps: map[string]mapIdentity{"ct": {ID: 7}}, Drain: &drainState{Since: time.Unix(1000, 0)},
		Handovers: map[string]handoverState{"ct": {1, 2}}, Unheld: map[string]unheldKeys{"ct": {Seed: 1, Hashes: make([]byte, 8)}},
	}).encode()
	if err != nil {
		f.Fatal(err)
	}
	object, err := cutChecksum(whole)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole, false)
	f.Add(object, false)
	f.Add(object, true)
	f.Add([]byte(nil), false)
	f.Fuzz(func(t *testing.T, data []byte, checked bool) {
		if checked && len(data) > 0 {
			data = withChecksum(data)
		}
		read, err := parseState(data)
		if err != nil {
			return
		}
		again, err := read.encode()
		if err != nil {
			t.Fatalf("encode the state of %q: got error %v, want none", data, err)
		}
		if got, err := parseState(again); err != nil || !cmp.Equal(read, got, cmpopts.EquateEmpty()) {
			t.Errorf("state that was saved again: got %+v, error %v, want %+v", got, err, read)
		}
	})
}
