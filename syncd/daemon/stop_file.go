package daemon

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/zeebo/xxh3"

	"mapsync/syncd/kmap"
	"mapsync/syncd/table"
)

// stopFile has what the node knew of the entries of a kernel map when syncd stopped cleanly: see table.Stop. A start removes
// the file before it replicates the map, so that the file of an earlier stop never counts after a kill.
//
// The file has a magic number, the size of the header in 4 bytes, the header as JSON, the entries, and a hash of all that.
type stopFile struct {
	header stopHeader
	stop   table.Stop
}

// stopHeader is the header of a stop file. The file counts only for the same kernel map and the same boot, and only if no
// incarnation has replicated since the one that has written it.
type stopHeader struct {
	Version     int         `json:"version"`
	BootID      string      `json:"boot_id"`
	Incarnation uint64      `json:"incarnation"` // of the process that wrote the file
	Map         mapIdentity `json:"kernel_map"`
	// Stable is the hash of table.Options.Stable.
	Stable  uint64        `json:"stable"`
	Seed    uint64        `json:"seed"`
	Owners  []table.Owner `json:"owners"`
	Entries int           `json:"entries"`
}

const (
	stopMagic = "mapsync\x01"
	// stopFileVersion is the version of the header. Other releases ignore a file of another version.
	stopFileVersion = 1
	// maxStopHeader is the maximum size of the header in bytes: 65,536 owners with long names.
	maxStopHeader = 32 << 20
	// maxStopEntries is the maximum number of entries in the file of a map whose size is not known.
	maxStopEntries = 1 << 26
	// slowStop is the time from which on the log has the duration of writing a stop file.
	slowStop = 2 * time.Second
)

// errStopFile is wrapped by the errors about the content of a stop file.
var errStopFile = errors.New("malformed stop file")

// encode returns the content of the file.
func (f *stopFile) encode() ([]byte, error) {
	f.header.Seed, f.header.Owners, f.header.Entries = f.stop.Seed, f.stop.Owners, f.stop.Len()
	header, err := json.Marshal(f.header)
	if err != nil {
		return nil, err
	}
	data := make([]byte, 0, len(stopMagic)+4+len(header)+len(f.stop.Entries)+8)
	data = binary.LittleEndian.AppendUint32(append(data, stopMagic...), uint32(len(header)))
	data = append(append(data, header...), f.stop.Entries...)
	return binary.LittleEndian.AppendUint64(data, xxh3.Hash(data)), nil
}

// parseStopFile parses the content of a file, which it keeps. The error wraps errStopFile.
func parseStopFile(data []byte) (*stopFile, error) {
	rest, found := bytes.CutPrefix(data, []byte(stopMagic))
	if !found || len(rest) < 4+8 {
		return nil, fmt.Errorf("read a file of %d bytes: %w", len(data), errStopFile)
	}
	end := len(data) - 8
	if xxh3.Hash(data[:end]) != binary.LittleEndian.Uint64(data[end:]) {
		return nil, fmt.Errorf("check the hash of %d bytes: %w", len(data), errStopFile)
	}
	size, rest := uint64(binary.LittleEndian.Uint32(rest)), rest[4:len(rest)-8]
	if size > maxStopHeader || size > uint64(len(rest)) {
		return nil, fmt.Errorf("read a header of %d bytes: %w", size, errStopFile)
	}
	f := new(stopFile)
	if err := parseVersioned(rest[:size], &f.header, "stop file", versions{stopFileVersion, stopFileVersion, "start all nodes with one release"}); err != nil {
		return nil, fmt.Errorf("%w: %w", errStopFile, err)
	}
	f.stop = table.Stop{Seed: f.header.Seed, Owners: f.header.Owners, Entries: rest[size:]}
	if f.header.Entries != f.stop.Len() {
		return nil, fmt.Errorf("read %d entries of %d: %w", f.stop.Len(), f.header.Entries, errStopFile)
	}
	if err := f.stop.Check(); err != nil {
		return nil, fmt.Errorf("%w: %w", errStopFile, err)
	}
	return f, nil
}

// stopPath returns the path of the stop file of a map.
func (s *state) stopPath(name string) string {
	return filepath.Join(filepath.Dir(s.path), s.node+"."+name+".stop")
}

// takeStop reads the stop file of a map, and removes it. It returns an empty file if there is none, or if another
// incarnation or another boot has written it. limit is the maximum number of entries.
func (s *state) takeStop(name string, limit int) *stopFile {
	path := s.stopPath(name)
	data, err := readPlainFile(path, int64(limit)*table.StopEntrySize+maxStopHeader+64)
	if errors.Is(err, fs.ErrNotExist) {
		return new(stopFile)
	}
	removed := os.Remove(path)
	if removed == nil {
		removed = syncDir(filepath.Dir(path))
	}
	f := new(stopFile)
	if err == nil {
		f, err = parseStopFile(data)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err = errors.Join(err, removed); err != nil {
		s.readFailures++
		s.log.Error("failed to read the entries of the last stop, starting without them", "map", name, "file", path, "error", err,
			"hint", "entries that ended while syncd was stopped on all nodes come back; let syncd write state-dir, or remove the file")
		return new(stopFile)
	}
	if f.header.BootID == "" || f.header.BootID != s.file.BootID || f.header.Incarnation != s.former || s.former == 0 {
		return new(stopFile)
	}
	return f
}

// saveStop writes the stop file of a map.
func (s *state) saveStop(name string, f *stopFile) error {
	s.mu.Lock()
	f.header.Version, f.header.BootID, f.header.Incarnation = stopFileVersion, s.file.BootID, s.file.Incarnation
	s.mu.Unlock()
	data, err := f.encode()
	if err == nil {
		err = replaceFile(s.stopPath(name), data)
	}
	if err != nil {
		s.mu.Lock()
		s.writeFailures++
		s.mu.Unlock()
	}
	return err
}

// lastStop returns what the last incarnation has saved of a kernel map when it stopped. It removes the file before the map is
// offered to peers.
func (m *replica) lastStop(info *kmap.Info, stable []byte) table.Stop {
	if m.daemon.config.DrainSums(m.name) {
		return table.Stop{}
	}
	if m.stop == nil {
		m.stop = m.daemon.state.takeStop(m.name, info.MaxEntries)
	}
	if h := &m.stop.header; h.Map != identityOf(info) || h.Stable != xxh3.Hash(stable) {
		return table.Stop{}
	}
	return m.stop.stop
}

// saveStops writes the stop files of all maps. Capture, replication and writers have ended.
func (d *Daemon) saveStops() {
	for _, m := range d.replicas() {
		switch {
		case d.config.DrainSums(m.name):
		case m.offered == nil:
			m.keepStop()
		case m.attachedAtEnd:
			m.saveStop()
		}
	}
}

// keepStop keeps what an earlier incarnation has saved: this one has not replicated the map.
func (m *replica) keepStop() {
	if m.stop == nil {
		m.stop = m.daemon.state.takeStop(m.name, maxStopEntries)
	}
	if m.stop.stop.Len() == 0 {
		return
	}
	if err := m.daemon.state.saveStop(m.name, m.stop); err != nil {
		m.log.Warn("failed to save the entries of the map", "error", err,
			"hint", "entries that end while syncd is stopped on all nodes come back; free or repair state-dir")
	}
}

// saveStop writes the stop file of the map.
func (m *replica) saveStop() {
	began := time.Now()
	f := &stopFile{header: stopHeader{Map: m.loaded, Stable: xxh3.Hash(m.offeredSchema.Stable())}}
	m.offered.View(func(tx *table.Tx) { f.stop = tx.Stop(rand.Uint64()) })
	if err := m.daemon.state.saveStop(m.name, f); err != nil {
		m.log.Warn("failed to save the entries of the map", "error", err,
			"hint", "entries that end while syncd is stopped on all nodes come back; free or repair state-dir")
		return
	}
	if took := time.Since(began); took > slowStop {
		m.log.Info("saved the entries of the map", "entries", f.stop.Len(), "seconds", took.Seconds())
	}
}
