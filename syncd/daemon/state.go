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
)

// state remembers, from one incarnation to the next, which kernel map each name
// stood for. The same map tells that an absent key was deleted while the daemon
// was away; another one tells that the load balancer began anew.
type state struct {
	path string
	boot string

	mu   sync.Mutex
	maps map[string]uint32
}

type stateFile struct {
	BootID string            `json:"boot_id"`
	Maps   map[string]uint32 `json:"maps"`
}

func openState(dir, node string) (*state, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, fmt.Errorf("read the boot id: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the state directory: %w", err)
	}
	s := &state{
		path: filepath.Join(dir, node+".state.json"),
		boot: strings.TrimSpace(string(boot)),
		maps: make(map[string]uint32),
	}
	data, err := os.ReadFile(s.path)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the state: %w", err)
	}
	var file stateFile
	if err := json.Unmarshal(data, &file); err != nil {
		return nil, fmt.Errorf("parse %s (delete it to start as a new node): %w", s.path, err)
	}
	if file.BootID == s.boot && file.Maps != nil { // map ids count from boot
		s.maps = file.Maps
	}
	return s, nil
}

// same reports whether name stood for the kernel map id before.
func (s *state) same(name string, id uint32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	known, ok := s.maps[name]
	return ok && known == id
}

// remember notes that name stands for the kernel map id now.
func (s *state) remember(name string, id uint32) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.maps[name] = id
	data, err := json.Marshal(stateFile{BootID: s.boot, Maps: s.maps})
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
