package schema

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
)

// maxBTF is the size of the largest accepted BTF in bytes. Objects have some kilobytes of BTF. A
// reader that follows types recursively overflows its stack at three million bytes.
const maxBTF = 2 << 20

// FromObject returns the schemas of the hash maps and arrays of a BPF object file, by name. The file does not
// contain the number of CPUs, so entries of per-CPU maps have one CPU. If a map has a type that
// cannot be replicated, the error includes it, and FromObject still returns the other schemas.
func FromObject(path string) ([]*Schema, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read BPF object: %w", err)
	}
	defer file.Close()
	spec, err := loadObject(file)
	if err != nil {
		return nil, fmt.Errorf("read BPF object %s: %w", path, err)
	}
	return fromSpec(spec)
}

// fromSpec returns the schemas of the maps of an object.
func fromSpec(spec *ebpf.CollectionSpec) ([]*Schema, error) {
	var schemas []*Schema
	var failed []error
	for _, name := range slices.Sorted(maps.Keys(spec.Maps)) {
		s, err := fromMapSpec(name, spec.Maps[name])
		if err != nil {
			failed = append(failed, err)
		} else if s != nil {
			schemas = append(schemas, s)
		}
	}
	return schemas, errors.Join(failed...)
}

// loadObject reads an object. The library may panic on an invalid one.
func loadObject(from io.ReaderAt) (spec *ebpf.CollectionSpec, err error) {
	defer recovered(&err)
	file, err := elf.NewFile(from)
	if err != nil {
		return nil, err
	}
	if s := file.Section(".BTF"); s != nil && s.Size > maxBTF {
		return nil, fmt.Errorf("it has %d bytes of BTF, more than %d", s.Size, maxBTF)
	}
	if file.Data != elf.ELFDATA2LSB {
		return nil, errors.New("it is for machines of the other byte order")
	}
	return ebpf.LoadCollectionSpecFromReader(from)
}

// recovered converts a panic to an error.
func recovered(err *error) {
	if r := recover(); r != nil {
		*err = fmt.Errorf("the types are broken: %v", r)
	}
}

// fromMapSpec returns nil for a map that is neither a hash nor an array, and for sections of variables.
func fromMapSpec(name string, m *ebpf.MapSpec) (*Schema, error) {
	if strings.HasPrefix(name, ".") {
		return nil, nil
	}
	if !isText(name, maxName) {
		return nil, fmt.Errorf("read map %.40q: %w: its name is not printable, or longer than %d bytes", name, ErrType, maxName)
	}
	perCPU := false
	switch m.Type {
	case ebpf.Hash, ebpf.LRUHash, ebpf.Array:
	case ebpf.PerCPUHash, ebpf.LRUCPUHash, ebpf.PerCPUArray:
		perCPU = true
	default:
		return nil, nil
	}
	s := FromSizes(name, int(m.KeySize), int(m.ValueSize))
	if m.Key != nil && m.Value != nil {
		var err error
		if s, err = FromTypes(name, m.Key, m.Value); err != nil {
			return nil, err
		}
	}
	if perCPU {
		s = s.PerCPU(1)
	}
	return s, nil
}
