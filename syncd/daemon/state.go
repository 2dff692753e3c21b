package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"mapsync/syncd/kmap"
)

// state remembers, from one incarnation to the next, which kernel map each name
// stood for. The same map tells that an absent key was deleted while the daemon
// was away; another one tells that the load balancer began anew. It also keeps
// incarnations growing where the wall clock was set back.
type state struct {
	path string

	mu   sync.Mutex
	file stateFile
}

// mapIdentity tells one kernel map of this boot from all others. The id alone would,
// were ids not used again one day.
type mapIdentity struct {
	ID         uint32 `json:"id"`
	BTF        uint32 `json:"btf,omitempty"`
	Name       string `json:"name"`
	Type       string `json:"type"`
	KeySize    int    `json:"key_size"`
	ValueSize  int    `json:"value_size"`
	MaxEntries int    `json:"max_entries"`
	Flags      uint32 `json:"flags,omitempty"`
}

func identityOf(i *kmap.Info) mapIdentity {
	return mapIdentity{
		ID: i.ID, BTF: i.BTFID, Name: i.Name, Type: i.Type.String(), Flags: i.Flags,
		KeySize: i.KeySize, ValueSize: i.ValueSize, MaxEntries: i.MaxEntries,
	}
}

type stateFile struct {
	BootID      string                 `json:"boot_id"`
	Incarnation uint64                 `json:"incarnation"` // the last one
	Maps        map[string]mapIdentity `json:"kernel_maps"`
}

func openState(dir, node string) (*state, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, fmt.Errorf("read the boot id: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the state directory: %w", err)
	}
	s := &state{path: filepath.Join(dir, node+".state.json")}
	data, err := os.ReadFile(s.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("read the state: %w", err)
	default:
		if err := json.Unmarshal(data, &s.file); err != nil {
			return nil, fmt.Errorf("parse %s (delete it to start as a new node): %w", s.path, err)
		}
	}
	this := strings.TrimSpace(string(boot))
	if s.file.BootID != this || s.file.Maps == nil { // map ids count from boot
		s.file.BootID, s.file.Maps = this, make(map[string]mapIdentity)
	}
	return s, nil
}

// begin returns the incarnation that starts now, in ns of the wall clock: peers take the
// higher one for the later, whatever was done to the clock meanwhile.
func (s *state) begin(now uint64) (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.file.Incarnation = max(now, s.file.Incarnation+1)
	return s.file.Incarnation, s.save()
}

// same reports whether name stood for this very kernel map before.
func (s *state) same(name string, id mapIdentity) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	known, ok := s.file.Maps[name]
	return ok && known == id
}

// remember notes that name stands for this kernel map now.
func (s *state) remember(name string, id mapIdentity) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.file.Maps[name] = id
	return s.save()
}

func (s *state) save() error {
	data, err := json.Marshal(s.file)
	if err != nil {
		return fmt.Errorf("encode the state: %w", err)
	}
	next := s.path + ".new"
	if err := os.WriteFile(next, data, 0o600); err != nil {
		return fmt.Errorf("write the state: %w", err)
	}
	if err := os.Rename(next, s.path); err != nil {
		return fmt.Errorf("replace the state: %w", err)
	}
	return nil
}
