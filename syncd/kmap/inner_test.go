package kmap

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
)

func outerSpec(t ebpf.MapType, keySize uint32, inner *ebpf.MapSpec) *ebpf.MapSpec {
	return &ebpf.MapSpec{Name: "outer", Type: t, KeySize: keySize, ValueSize: 4, MaxEntries: 4, InnerMap: inner}
}

// TestWatchInnerMap follows an inner map as it comes, is replaced and goes, and the map of maps goes.
func TestWatchInnerMap(t *testing.T) {
	for _, c := range []struct {
		typ     ebpf.MapType
		keySize uint32
		key     any
		text    string
	}{
		{ebpf.ArrayOfMaps, 4, uint32(3), "3"},
		{ebpf.HashOfMaps, 2, uint16(700), "700"},
		{ebpf.HashOfMaps, 8, uint64(1) << 40, "1099511627776"},
		{ebpf.HashOfMaps, 3, [3]byte{1, 2, 255}, "0x0102ff"},
	} {
		t.Run(c.typ.String()+" "+c.text, func(t *testing.T) {
			spec := withType(hashSpec(8, 8, 100), ebpf.LRUHash)
			outer := newKernelMap(t, outerSpec(c.typ, c.keySize, spec))
			path := filepath.Join(bpffs(t), "outer")
			if err := outer.Pin(path); err != nil {
				t.Fatal(err)
			}
			ref, err := ParseRef(path + "[" + c.text + "]")
			if err != nil {
				t.Fatal(err)
			}
			put := func() *ebpf.Map {
				t.Helper()
				m := newKernelMap(t, spec)
				if err := outer.Put(c.key, m); err != nil {
					t.Fatal(err)
				}
				return m
			}
			w := NewWatcher(ref, 10*time.Millisecond)
			expectEvent(t, w, Gone, 0)
			first := put()
			expectEvent(t, w, Appeared, idOf(t, first))
			expectNoEvent(t, w)
			second := put()
			expectEvent(t, w, Replaced, idOf(t, second))
			if err := outer.Delete(c.key); err != nil {
				t.Fatal(err)
			}
			expectEvent(t, w, Gone, idOf(t, second))
			third := put()
			expectEvent(t, w, Appeared, idOf(t, third))
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			expectEvent(t, w, Gone, idOf(t, third))
		})
	}
}

func TestInnerMapErrors(t *testing.T) {
	dir := bpffs(t)
	inner := hashSpec(8, 8, 100)
	for name, spec := range map[string]*ebpf.MapSpec{
		"array": outerSpec(ebpf.ArrayOfMaps, 4, inner),
		"hash3": outerSpec(ebpf.HashOfMaps, 3, inner),
		"plain": inner,
	} {
		if err := newKernelMap(t, spec).Pin(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	for ref, want := range map[string]string{
		"array[4294967296]": "write a number",
		"array[0x00]":       "the 4 bytes",
		"hash3[1]":          "write a number for a key of 1, 2, 4 or 8 bytes, or 0x and the 3 bytes",
		"plain[1]":          "has no inner maps",
		"array[9]":          "not found",
		"absent[0]":         "not found",
	} {
		r, err := ParseRef(filepath.Join(dir, ref))
		if err != nil {
			t.Fatal(err)
		}
		if _, err = resolvedID(t, r); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("resolve %s: got error %v, want one with %q", ref, err, want)
		}
	}
	m, err := Resolve(Ref{PinPath: filepath.Join(dir, "array")})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if _, err := Open(m, Options{}); !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), "NAME=REF[KEY]") {
		t.Errorf("open a map of maps: got error %v, want ErrUnsupported with the way to name an inner map", err)
	}
}

// FuzzRef parses references and encodes the keys of inner maps, neither of which may panic.
func FuzzRef(f *testing.F) {
	f.Add("pin:/sys/fs/bpf/lru[0]", 4)
	f.Add("lru[0x0102ff]", 3)
	f.Add("id:7[18446744073709551615]", 8)
	f.Fuzz(func(t *testing.T, text string, size int) {
		ref, err := ParseRef(text)
		if err != nil {
			return
		}
		if again, err := ParseRef(ref.String()); err != nil || again != ref {
			t.Errorf("parse %q again: got %+v, error %v, want %+v", ref, again, err, ref)
		}
		if size = 1 + size&(MaxKeySize-1); ref.InnerKey != "" {
			if key, err := encodeKey(ref.InnerKey, size); err == nil && len(key) != size {
				t.Errorf("encode key %q: got %d bytes, want %d", ref.InnerKey, len(key), size)
			}
		}
	})
}
