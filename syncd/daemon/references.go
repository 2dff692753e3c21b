package daemon

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/zeebo/xxh3"

	"mapsync/syncd/config"
	"mapsync/syncd/kmap"
	"mapsync/syncd/reference"
	"mapsync/syncd/schema"
	"mapsync/syncd/schema/export"
	"mapsync/syncd/table"
)

// The interval in which a referenced map is read. Reads of a large map take at most a part of the time.
const (
	referenceInterval = 100 * time.Millisecond
	referenceShare    = 50
)

// referenceWait is the time for which a map waits until its referenced maps were read.
const referenceWait = time.Second

// errReferenceAbsent is the state of a referenced map before it was read.
var errReferenceAbsent = errors.New("it does not exist yet")

// references are the referenced maps of this node, by name. Its elements do not change.
type references map[string]*referencedMap

// referencedMap is a map that says what ids mean. It is read again and again, and never written.
type referencedMap struct {
	daemon *Daemon
	name   string
	ref    kmap.Ref
	log    *slog.Logger
	fields []schema.Setting

	mu sync.Mutex
	// names are the meanings of each reference to this map, nil until a read has filled them. Elements are added only.
	names map[string]*reference.Names
	// err is why the map cannot be read at present.
	err error
}

// newReferences returns the referenced maps of the settings. They are not read before run.
func newReferences(d *Daemon, settings []string, fields []schema.Setting) (references, error) {
	list := make(references, len(settings))
	for _, s := range settings {
		m, err := config.ParseMap(s)
		if err != nil {
			return nil, err
		}
		ref, err := kmap.ParseRef(m.Ref)
		if err != nil {
			return nil, err
		}
		list[m.Name] = &referencedMap{
			daemon: d, name: m.Name, ref: ref, log: d.log.With("referenced_map", m.Name), fields: fields,
			names: make(map[string]*reference.Names), err: errReferenceAbsent,
		}
	}
	return list, nil
}

// translation returns the translation for entries of a schema, or nil if they have no ids of other maps. The error says which referenced
// map is missing.
func (r references) translation(s *schema.Schema) (*reference.Translation, error) {
	list := s.ReferencesOf()
	if len(list) == 0 {
		return nil, nil
	}
	names := make(map[string]*reference.Names, len(list))
	for _, text := range list {
		to, err := schema.ParseReference(text)
		if err != nil {
			return nil, err
		}
		m := r[to.Map]
		if m == nil {
			return nil, fmt.Errorf("%w: a field refers to map %s: add referenced-map: [%[2]s=REF]", kmap.ErrUnsupported, to.Map)
		}
		if names[text], err = m.awaitNames(text); err != nil {
			return nil, fmt.Errorf("referenced map %s: %w", to.Map, err)
		}
	}
	return reference.NewTranslation(s, names)
}

// awaitNames is namesOf, and waits until the map was read.
func (m *referencedMap) awaitNames(text string) (n *reference.Names, err error) {
	for end := time.Now().Add(referenceWait); ; time.Sleep(referenceInterval / 10) {
		if n, err = m.namesOf(text); err == nil || time.Now().After(end) {
			return n, err
		}
	}
}

// namesOf returns the meanings of a reference to the map. The error is why the map has not been read.
func (m *referencedMap) namesOf(text string) (*reference.Names, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, known := m.names[text]
	if !known {
		m.names[text] = nil
	}
	switch {
	case n != nil:
		return n, nil
	case m.err != nil:
		return nil, m.err
	}
	return nil, errors.New("it is being read")
}

// problem returns why the map cannot be read at present, or an empty text.
func (m *referencedMap) problem() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.err == nil || len(m.names) == 0:
		return ""
	case errors.Is(m.err, errReferenceAbsent):
		return m.ref.Absence()
	}
	return m.err.Error()
}

func (m *referencedMap) setError(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil && (m.err == nil || m.err.Error() != err.Error()) {
		m.log.Warn("failed to read referenced map", "error", err, "hint", "until it can be read, ids keep the meanings that they had")
	}
	m.err = err
}

// run follows the map until ctx ends.
func (m *referencedMap) run(ctx context.Context) error {
	interval := pollMaps
	if m.ref.PinPath != "" && m.ref.InnerKey == "" {
		interval = pollPin
	}
	watcher := kmap.NewWatcher(m.ref, interval, m.daemon.pinOwners...)
	stop := func() {}
	defer func() { stop() }()
	for ctx.Err() == nil {
		event, err := watcher.Next(ctx)
		if ctx.Err() != nil {
			break
		}
		if err != nil {
			m.setError(err)
			continue
		}
		stop()
		stop = func() {}
		if event.Kind == kmap.Gone {
			m.setError(errReferenceAbsent)
			continue
		}
		reader, err := m.open(event.Map)
		if err != nil {
			m.setError(err)
			continue
		}
		reading, cancel := context.WithCancel(ctx)
		done := make(chan struct{})
		go func() { defer close(done); reader.run(reading) }()
		stop = func() { cancel(); <-done }
	}
	return nil
}

// referenceReader reads one kernel map of a referencedMap.
type referenceReader struct {
	of      *referencedMap
	m       *kmap.Map
	schema  *schema.Schema
	printer *export.Printer
	seed    maphash.Seed
	// last is the hash of the content at the last read, if readOnce is true.
	last     uint64
	readOnce bool
	released time.Time // when release last searched
}

// open opens a kernel map for reading. It closes raw.
func (m *referencedMap) open(raw *ebpf.Map) (*referenceReader, error) {
	defer raw.Close()
	s, err := referencedTypes(&m.daemon.config, m.name, raw, m.fields)
	if err != nil {
		return nil, err
	}
	opened, err := kmap.Open(raw, kmap.Options{NoProgram: true, ScanCPUs: m.daemon.scanCPUs})
	if err != nil {
		return nil, err
	}
	return &referenceReader{of: m, m: opened, schema: s, printer: export.NewPrinter(s, m.daemon.links), seed: maphash.MakeSeed()}, nil
}

// referencedTypes returns the types of a referenced map. An error wraps ErrUnsupported if its keys cannot be ids.
func referencedTypes(c *config.Config, name string, raw *ebpf.Map, fields []schema.Setting) (*schema.Schema, error) {
	info, err := kmap.Describe(raw)
	if err != nil {
		return nil, err
	}
	switch info.KeySize {
	case 1, 2, 4, 8:
	default:
		return nil, fmt.Errorf("%w: its keys have %d bytes, which are not an id", kmap.ErrUnsupported, info.KeySize)
	}
	s, err := typesOf(c, name, schemaFile(c, name), info)
	if err != nil {
		return nil, err
	}
	return s, s.Apply(fields)
}

// meaningPaths returns the fields of a reference to a map.
func meaningPaths(s *schema.Schema, to schema.Reference) (paths []schema.Path, err error) {
	for _, name := range to.Fields {
		p, err := s.Path("value." + name)
		if err != nil {
			return nil, err
		}
		paths = append(paths, p)
	}
	return paths, nil
}

// run reads the map until ctx ends.
func (r *referenceReader) run(ctx context.Context) {
	defer r.m.Close() //nolint:errcheck // it was only read
	for ctx.Err() == nil {
		began := time.Now()
		err := r.read(ctx)
		if ctx.Err() != nil {
			return
		}
		r.of.setError(err)
		select {
		case <-ctx.Done():
		case <-time.After(max(referenceInterval, referenceShare*time.Since(began))):
		}
	}
}

// read reads the map once, and updates the meanings if it has changed.
func (r *referenceReader) read(ctx context.Context) error {
	type entry struct {
		id    uint64
		value []byte
	}
	began := time.Now().UnixNano()
	var entries []entry
	var hash uint64 // does not depend on the order
	err := r.m.ForEach(ctx, func(key, value []byte) error {
		var h maphash.Hash
		h.SetSeed(r.seed)
		_, _ = h.Write(key) // a hash never fails
		_, _ = h.Write(value)
		hash += h.Sum64()
		entries = append(entries, entry{reference.ID(key), slices.Clone(value)})
		return nil
	})
	if err != nil {
		return err
	}
	for text, n := range r.of.wanted() {
		switch size := r.schema.Key.Size; {
		case n == nil:
			n = reference.NewNames(size)
		case n.Size() != size:
			return fmt.Errorf("its keys had %d bytes before and have %d now: restart syncd", n.Size(), size)
		case hash == r.last && r.readOnce:
			n.Confirm(began)
			r.release(n)
			continue
		}
		to, err := schema.ParseReference(text)
		if err != nil {
			return err
		}
		paths, err := meaningPaths(r.schema, to)
		if err != nil {
			return err
		}
		content := make(map[uint64]string, len(entries))
		for _, e := range entries {
			content[e.id] = r.meaning(paths, e.value)
		}
		if n.UpdateAt(content, began) {
			r.of.log.Debug("referenced map has changed", "ids", len(content))
		}
		r.release(n)
		r.of.fill(text, n)
	}
	r.last, r.readOnce = hash, true
	return nil
}

// wanted returns the meanings of each reference, nil for those that are not filled.
func (m *referencedMap) wanted() map[string]*reference.Names {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.names)
}

// fill stores the meanings of a reference.
func (m *referencedMap) fill(text string, n *reference.Names) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.names[text] = n
}

// meaning returns the meaning of an entry: FIELD=VALUE, separated by commas. A long one is shortened, and ends with a hash.
func (r *referenceReader) meaning(paths []schema.Path, value []byte) string {
	var text []byte
	for i := range paths {
		if i > 0 {
			text = append(text, ',')
		}
		text = append(append(text, paths[i].Last().Name...), '=')
		text = r.printer.AppendField(text, &paths[i], value)
	}
	s := strings.ReplaceAll(string(text), " ", ";")
	if len(s) > schema.MaxMeaning {
		sum := xxh3.HashString128(s).Bytes()
		s = s[:schema.MaxMeaning-33] + "#" + hex.EncodeToString(sum[:])
	}
	return s
}

// translationOf returns the translation of a table. It is nil without a table, and if entries have no ids of other maps.
func translationOf(t *table.Table) *reference.Translation {
	if t == nil {
		return nil
	}
	tr, _ := t.Meanings().(*reference.Translation)
	return tr
}

// entryNames are the names of the numbers in the entries of a map: of interfaces, and the meanings of ids.
type entryNames struct {
	*links
	*reference.Translation
}

// namesIn returns the names of the numbers in the entries of a table. t may be nil.
func (d *Daemon) namesIn(t *table.Table) schema.Links {
	if tr := translationOf(t); tr != nil {
		return entryNames{d.links, tr}
	}
	return d.links
}
