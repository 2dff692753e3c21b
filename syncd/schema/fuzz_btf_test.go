package schema

import (
	"bytes"
	"debug/elf"
	"errors"
	"strings"
	"testing"

	"github.com/cilium/ebpf/btf"
)

// FuzzBTF reads arbitrary bytes as BTF. It must neither panic nor loop endlessly, and every
// resulting schema must be valid.
func FuzzBTF(f *testing.F) {
	file, err := elf.Open(layouts)
	if err != nil {
		f.Fatal(err)
	}
	defer file.Close()
	raw, err := file.Section(".BTF").Data()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	seeds := 0
	for name, t := range hostile() {
		// Large or slow types are tested without the fuzzer.
		if seed := marshal(t); len(seed) > 0 && len(seed) < 1<<14 && !strings.Contains(name, "65536 fields") {
			f.Add(seed)
			seeds++
		}
	}
	if seeds < 20 {
		f.Fatalf("seeds: got %d, want at least 20", seeds)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		if len(raw) > 1<<16 {
			return
		}
		for _, typ := range typesOf(raw) {
			s, err := FromTypes("m", typ, typ)
			if err == nil {
				err = s.Check()
				if err != nil {
					t.Fatalf("check schema: %v", err)
				}
				continue
			}
			if !errors.Is(err, ErrType) {
				t.Fatalf("build schema: got %v, want ErrType", err)
			}
			if s, err = FromTypes("m", &btf.Int{Size: 1}, typ); err != nil {
				continue
			}
			if err = s.Check(); err != nil {
				t.Fatalf("check schema: %v", err)
			}
		}
	})
}

// typesOf returns the types that can be read. The library may panic.
func typesOf(raw []byte) (types []btf.Type) {
	var err error
	defer recovered(&err)
	spec, err := btf.LoadSpecFromReader(bytes.NewReader(raw))
	if err != nil {
		return nil
	}
	for id := btf.TypeID(1); len(types) < 64; id++ {
		typ, err := spec.TypeByID(id)
		if errors.Is(err, btf.ErrNotFound) {
			break
		}
		if err == nil {
			types = append(types, typ)
		}
	}
	return types
}

// marshal returns nil for a type that cannot be marshalled.
func marshal(t btf.Type) (raw []byte) {
	var err error
	defer recovered(&err)
	b, err := btf.NewBuilder([]btf.Type{t}, nil)
	if err != nil {
		return nil
	}
	raw, err = b.Marshal(nil, nil)
	if err != nil {
		return nil
	}
	return raw
}
