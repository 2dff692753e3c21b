package daemon

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"mapsync/syncd/kmap"
	"mapsync/syncd/table"
)

// state stores, from one incarnation to the next, whether the node is drained, and which kernel map each name referred to. If the
// kernel map is the same, an absent key was deleted while the daemon was stopped. If it is
// another one, the load balancer has started with an empty map. state also keeps incarnations
// increasing if the wall clock is set back.
//
// Errors of the file stop nothing. The daemon continues with the state in memory, logs a warning,
// counts the error and writes the file again later. Only a restart needs the file.
type state struct {
	path string
	node string
	log  *slog.Logger
	// former is the last incarnation before this one that replicated, 0: unknown.
	former uint64

	changed chan struct{} // wakes run

	writing sync.Mutex // held while the file is written; taken before mu
	onDisk  stateFile  // what the file has, without the incarnations; writing guards it

	// mu guards the fields below. It is never held while the file is written, because a disk may
	// hang.
	mu            sync.Mutex
	file          stateFile
	saved         bool   // the file contains the current state
	problem       string // the last logged error, until a save succeeds
	unread        string // the error of the read at the start; empty: none
	readFailures  uint64 // failed reads
	writeFailures uint64 // failed writes
}

// stateStats is a snapshot of the statistics of the state file.
type stateStats struct {
	Saved                     bool
	ReadFailures, WriteErrors uint64
	Problem, Unread           string
}

// mapIdentity distinguishes one kernel map of this boot from all others. The id alone is not
// enough, because the kernel can use an id again.
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

// stateVersion is the highest version of the state file that this release writes. It increases if an
// earlier release would misread the file. A file without a version has version 0, which has the
// same fields as version 1. Version 2 has unheld keys. A file without them has version 1.
const stateVersion = 2

type stateFile struct {
	// Checksum is empty: cutChecksum removes the field, unless it was damaged or moved.
	Checksum    string                 `json:"checksum,omitempty"`
	Version     int                    `json:"version"`
	BootID      string                 `json:"boot_id"`
	Incarnation uint64                 `json:"incarnation"` // of the last start
	Replicated  uint64                 `json:"replicated"`  // the last incarnation that has replicated; 0: Incarnation
	Maps        map[string]mapIdentity `json:"kernel_maps"`
	// Drain and Handovers are valid until reboot, like Maps.
	Drain     *drainState              `json:"drain,omitempty"`
	Handovers map[string]handoverState `json:"handovers,omitempty"` // by name of the map
	// Unheld has the keys that the kernel maps of Maps have never held, by the names in Maps.
	Unheld map[string]unheldKeys `json:"unheld,omitempty"`
}

// unheldKeys is the form of table.Unheld in the state file.
type unheldKeys struct {
	Seed   uint64 `json:"seed"`
	Hashes []byte `json:"hashes"` // 8 bytes for each key
}

// maxStateSize is the maximum size of the state file in bytes. 1,024 maps take 256 KiB.
const maxStateSize = 1 << 20

// stateRetry is the interval at which a failed save is repeated.
const stateRetry = 10 * time.Second

// openState reads the state that an earlier incarnation saved in dir. If the file does not exist, or
// cannot be read, or is damaged, the daemon starts like a new node.
func openState(dir, node string, log *slog.Logger) *state {
	s := &state{path: filepath.Join(dir, node+".state.json"), node: node, log: log, changed: make(chan struct{}, 1)}
	err := s.read()
	s.onDisk = s.file.absence()
	if err != nil {
		s.readFailures++
		s.unread = err.Error()
		s.onDisk = stateFile{Maps: map[string]mapIdentity{"": {}}} // unknown
		s.file = stateFile{}
		log.Error("failed to read the state, starting without it", "file", s.path, "error", err,
			"hint", "a drain of this node has ended, and entries that ended while syncd was stopped may come back from peers; check the disk of state-dir, and run syncd drain again if the node was drained")
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		s.readFailures++
		log.Warn("failed to read the boot id, starting without the state", "error", err,
			"hint", "let syncd read /proc/sys/kernel/random/boot_id; until then, deletes made while syncd is stopped may be reverted")
	}
	this := strings.TrimSpace(string(boot))
	if this == "" || s.file.BootID != this || s.file.Maps == nil { // map ids are valid until reboot
		s.file.BootID, s.file.Maps, s.file.Unheld = this, make(map[string]mapIdentity), nil
		s.file.Drain, s.file.Handovers = nil, nil
	}
	s.former = cmp.Or(s.file.Replicated, s.file.Incarnation)
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
	s.file, err = parseState(data)
	return err
}

// parseState parses the content of a state file. A file of an earlier release has no checksum.
func parseState(data []byte) (f stateFile, err error) {
	if data, err = cutChecksum(data); err != nil {
		return f, fmt.Errorf("read the state: %w", err)
	}
	err = parseVersioned(data, &f, "state", versions{0, stateVersion, "drain a node before it returns to an earlier release"})
	if err == nil && f.Checksum != "" {
		err = fmt.Errorf("read the state: %w", errDamaged)
	}
	return f, err
}

// encode returns the content of the file. It sets the version.
func (f *stateFile) encode() ([]byte, error) {
	f.Version = 1
	if len(f.Unheld) > 0 {
		f.Version = stateVersion
	}
	data, err := json.Marshal(f)
	if err != nil {
		return nil, err
	}
	return withChecksum(data), nil
}

// nextIncarnation returns the incarnation of this start, in ns of the wall clock, and saves it.
// It is higher than the last one even if the clock was set back, because peers treat the higher
// one as the later one. If the last incarnation is more than maxAhead ahead of now, it does not
// count: peers have refused it, and would refuse the next one, too.
func (s *state) nextIncarnation(now uint64, maxAhead time.Duration) uint64 {
	s.mu.Lock()
	if last := s.file.Incarnation; last > now+uint64(maxAhead) {
		s.log.Warn("the clock was set back since the last start", "seconds", time.Duration(last-now).Seconds(), "incarnation", now,
			"hint", "check the clock (chronyc tracking); if it is wrong, correct it and restart syncd")
		s.file.Incarnation = 0
	}
	s.file.Incarnation = max(now, s.file.Incarnation+1)
	incarnation := s.file.Incarnation
	s.mu.Unlock()
	s.save()
	return incarnation
}

// run saves changes until ctx ends. It repeats a failed save every stateRetry.
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

// sameMap reports whether the state has id as the kernel map of name.
func (s *state) sameMap(name string, id mapIdentity) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	known, ok := s.file.Maps[name]
	return ok && known == id
}

// unheldKeys returns the keys that the kernel map of name has never held.
func (s *state) unheldKeys(name string) table.Unheld {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.file.Unheld[name]
	return table.Unheld{Seed: u.Seed, Hashes: u.Hashes}
}

// setIdentity stores id as the kernel map of name, with the keys that the map has never held.
func (s *state) setIdentity(name string, id mapIdentity, unheld *table.Unheld) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.file.Maps[name] = id
	delete(s.file.Unheld, name)
	if len(unheld.Hashes) > 0 {
		if s.file.Unheld == nil {
			s.file.Unheld = make(map[string]unheldKeys)
		}
		s.file.Unheld[name] = unheldKeys{Seed: unheld.Seed, Hashes: unheld.Hashes}
	}
	s.markUnsaved()
}

// removeIdentity removes the kernel map of name from the state.
func (s *state) removeIdentity(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.file.Maps, name)
	delete(s.file.Unheld, name)
	s.markUnsaved()
}

// markUnsaved makes run save the state. The lock is held.
func (s *state) markUnsaved() {
	s.saved = false
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// written reports whether the file has the state, or cannot be written. It waits for no disk.
func (s *state) written() bool {
	if !s.writing.TryLock() {
		return false
	}
	defer s.writing.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.saved || s.problem != ""
}

func (s *state) stats() stateStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return stateStats{Saved: s.saved, ReadFailures: s.readFailures, WriteErrors: s.writeFailures, Problem: s.problem, Unread: s.unread}
}

// close saves the last changes. Its error is always nil.
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

// save writes the state to the file. It counts each error, and logs an error once until it
// changes or ends.
func (s *state) save() {
	s.writing.Lock()
	defer s.writing.Unlock()
	s.mu.Lock()
	data, err := s.file.encode()
	absence := s.file.absence()
	s.saved = true // false again if the state changes meanwhile
	s.mu.Unlock()
	if err == nil {
		err = s.replace(data, absence)
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
	s.writeFailures++
	if text := err.Error(); text != s.problem {
		s.problem = text
		s.log.Warn("failed to save the state, trying again", "file", s.path, "error", err,
			"hint", "after a restart of syncd, entries that the load balancer deleted meanwhile may come back from peers; free or repair state-dir")
	}
}

// absence returns what the file says of the absence of entries.
func (f *stateFile) absence() stateFile {
	return stateFile{Maps: maps.Clone(f.Maps), Unheld: maps.Clone(f.Unheld)}
}

// holds reports whether everything that f says of the absence of entries is true according to now.
func (f *stateFile) holds(now *stateFile) bool {
	for name, id := range f.Maps {
		known, found := now.Maps[name]
		if !found || known != id || !bytes.Equal(f.Unheld[name].Hashes, now.Unheld[name].Hashes) {
			return false
		}
	}
	return true
}

// replace writes data to the file. If it cannot, for example because the disk is full, and the file has identities that no
// longer hold, it removes the file and tries again. Without the file, no absence counts as a delete at the next start.
func (s *state) replace(data []byte, absence stateFile) error {
	err := s.write(data)
	if err != nil && !s.onDisk.holds(&absence) {
		removed := os.Remove(s.path)
		if removed != nil {
			return errors.Join(err, removed)
		}
		s.onDisk = stateFile{}
		err = s.write(data)
	}
	if err == nil {
		s.onDisk = absence
	}
	return err
}

// noteReplicated notes that this incarnation replicates: what an earlier one has saved at its stop no longer counts.
func (s *state) noteReplicated() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.file.Replicated = s.file.Incarnation
	s.markUnsaved()
}

func (s *state) write(data []byte) error {
	if err := os.MkdirAll(filepath.Dir(s.path), 0o700); err != nil {
		return fmt.Errorf("make the state directory: %w", err)
	}
	return replaceFile(s.path, data)
}
