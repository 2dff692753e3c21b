package kmap

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/cilium/ebpf"
)

// Feature is a kernel feature that this package needs or can use.
type Feature struct {
	Name string
	// Purpose describes the use of the feature.
	Purpose string
	// Required is true if the feature has no substitute.
	Required bool
	// Err is nil if the feature works, otherwise the reason why it does not.
	Err error
}

// Features is the result of [Probe], most important feature first.
type Features []Feature

// Err returns an error if a required feature is unavailable, otherwise nil.
func (f Features) Err() error {
	var errs []error
	for _, x := range f {
		if x.Required && x.Err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", x.Name, x.Err))
		}
	}
	return errors.Join(errs...)
}

// Probe tests the kernel features that Open uses, on maps of its own.
func Probe() Features {
	f := Features{
		{Name: "maps", Purpose: "create a hash map", Required: true},
		{Name: "write-program", Purpose: "write by a BPF program: fast, and does not suppress hooks"},
		{Name: "lookup-program", Purpose: "look up by a program"},
		{Name: "read-program", Purpose: "read whole maps by a program: short calls, and does not suppress hooks"},
		{Name: "batch", Purpose: "bpf(2) for many entries a call: the fallback", Err: haveBatch()},
		{Name: "map-ids", Purpose: "find maps by name or id, list them"},
	}
	_, f[5].Err = ebpf.MapGetNextID(0)
	if errors.Is(f[5].Err, fs.ErrNotExist) {
		f[5].Err = nil
	}
	f[0].Err = probeMap(f[1:4])
	return f
}

// probeMap tests all access methods on a small map. It stores the errors in the features of
// writing, looking up and reading.
func probeMap(f Features) error {
	raw, err := ebpf.NewMap(&ebpf.MapSpec{Name: "mapsync_probe", Type: ebpf.Hash, KeySize: 8, ValueSize: 8, MaxEntries: 8})
	if err != nil {
		for i := range f {
			f[i].Err = errors.New("no test map available")
		}
		return err
	}
	defer release(raw)
	m, err := Open(raw, Options{})
	if err != nil {
		return err
	}
	defer release(m)
	f[0].Err = m.writeErr
	f[1].Err = m.lookupErr
	f[2].Err = m.readErr
	return roundTrip(m)
}

// roundTrip writes an entry and reads it back by lookup and by iteration.
func roundTrip(m *Map) error {
	key, value := []byte("roundtri"), []byte("ptripround")[:8]
	if err := writeEntry(m, key, value); err != nil {
		return err
	}
	seen := 0
	same := func(k, v []byte) bool { return string(k) == string(key) && string(v) == string(value) }
	err := m.Lookup(key, func(_ int, k, v []byte, found bool) {
		if found && same(k, v) {
			seen++
		}
	})
	if err != nil {
		return err
	}
	err = m.ForEach(context.Background(), func(k, v []byte) error {
		if same(k, v) {
			seen++
		}
		return nil
	})
	if err == nil && seen < 2 {
		err = errors.New("a written entry does not read back")
	}
	return err
}

// writeEntry writes one entry and returns the error of its write.
func writeEntry(m *Map, key, value []byte) error {
	b := m.Batch()
	if err := b.Add(key, value); err != nil {
		return err
	}
	if _, err := m.Apply(b); err != nil {
		return err
	}
	return b.Err(0)
}
