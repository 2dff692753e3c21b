package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"mapsync/syncd/kmap"
)

// state remembers, from one incarnation to the next, which kernel map each name
// stood for. The same map tells that an absent key was deleted while the daemon
// was away; another one tells that the load balancer began anew. It also keeps
// incarnations growing where the wall clock was set back.
//
// Trouble with the file stops nothing: the daemon goes on with what it holds in memory,
// warns, counts, and writes again later. Only a restart needs the file.
type state struct {
	path string
	log  *slog.Logger

	changed chan struct{} // wakes run

	writing sync.Mutex // of the file; taken before mu

	mu      sync.Mutex // never held while the file is written: a disk may hang
	file    stateFile
	saved   bool   // the file holds all of that
	problem string // the latest trouble that was logged and has not ended
	reads   uint64 // failures
	writes  uint64 // failures
}

// stateStats is a snapshot of how the state file does.
type stateStats struct {
	Saved                     bool
	ReadFailures, WriteErrors uint64
	Problem                   string
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

// maxStateSize bounds the state file: 64 maps take 16 KiB.
const maxStateSize = 1 << 20

// stateRetry is how often a state that was not saved is written again.
const stateRetry = 30 * time.Second

// openState reads what an earlier incarnation left in dir. Without that, or when it cannot
// be read, the daemon starts like a new node: see state.
func openState(dir, node string, log *slog.Logger) *state {
	s := &state{path: filepath.Join(dir, node+".state.json"), log: log, changed: make(chan struct{}, 1)}
	if err := s.read(); err != nil {
		s.reads++
		s.file = stateFile{}
		log.Warn("failed to read the state, starting without it", "file", s.path, "error", err,
			"hint", "entries that the load balancer deleted while syncd was stopped may come back from peers")
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		s.reads++
		log.Warn("failed to read the boot id, starting without the state", "error", err)
	}
	this := strings.TrimSpace(string(boot))
	if this == "" || s.file.BootID != this || s.file.Maps == nil { // map ids count from boot
		s.file.BootID, s.file.Maps = this, make(map[string]mapIdentity)
	}
	return s
}

func (s *state) read() error {
	data, err := readPlainFile(s.path, maxStateSize)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("read the state: %w", err)
	}
	if err := json.Unmarshal(data, &s.file); err != nil {
		return fmt.Errorf("parse the state: %w", err)
	}
	return nil
}

// begin returns the incarnation that starts now, in ns of the wall clock: peers take the
// higher one for the later, whatever was done to the clock meanwhile. It is saved. A last one
// that is more than maxAhead ahead of now is dropped: peers have refused it, and would refuse the
// next.
func (s *state) begin(now uint64, maxAhead time.Duration) uint64 {
	s.mu.Lock()
	if last := s.file.Incarnation; last > now+uint64(maxAhead) {
		s.log.Warn("the clock was set back since the last start", "seconds", time.Duration(last-now).Seconds(), "incarnation", now)
		s.file.Incarnation = 0
	}
	s.file.Incarnation = max(now, s.file.Incarnation+1)
	incarnation := s.file.Incarnation
	s.mu.Unlock()
	s.save()
	return incarnation
}

// run saves changes until ctx ends. A state that could not be saved is tried again every
// stateRetry.
func (s *state) run(ctx context.Context) error {
	timer := time.NewTimer(stateRetry)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.changed:
		case <-timer.C:
		}
		s.saveChanges()
		timer.Reset(stateRetry)
	}
}

// same reports whether name stood for this very kernel map before.
func (s *state) same(name string, id mapIdentity) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	known, ok := s.file.Maps[name]
	return ok && known == id
}

// remember notes that name stands for this kernel map now.
func (s *state) remember(name string, id mapIdentity) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.file.Maps[name] = id
	s.change()
}

// forget removes what is noted of a map.
func (s *state) forget(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.file.Maps, name)
	s.change()
}

// change has run save the state. The lock is held.
func (s *state) change() {
	s.saved = false
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

func (s *state) stats() stateStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return stateStats{Saved: s.saved, ReadFailures: s.reads, WriteErrors: s.writes, Problem: s.problem}
}

// close saves what changed last.
func (s *state) close() error {
	s.saveChanges()
	return nil
}

func (s *state) saveChanges() {
	s.mu.Lock()
	saved := s.saved
	s.mu.Unlock()
	if !saved {
		s.save()
	}
}

// save writes the state. Trouble is counted, and logged once until it ends.
func (s *state) save() {
	s.writing.Lock()
	defer s.writing.Unlock()
	s.mu.Lock()
	data, err := json.Marshal(s.file)
	s.saved = true // unless it changes meanwhile
	s.mu.Unlock()
	if err == nil {
		err = s.write(data)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		if s.problem != "" {
			s.log.Info("state saved again", "file", s.path)
		}
		s.problem = ""
		return
	}
	s.saved = false
	s.writes++
	if text := err.Error(); text != s.problem {
		s.problem = text
		s.log.Warn("failed to save the state, trying again", "file", s.path, "error", err,
			"hint", "after a restart of syncd, entries that the load balancer deleted meanwhile may come back from peers; free or repair state-dir")
	}
}

func (s *state) write(data []byte) error {
	if err := os.MkdirAll(filepath.Dir(s.path), 0o700); err != nil {
		return fmt.Errorf("make the state directory: %w", err)
	}
	return replaceFile(s.path, data)
}
