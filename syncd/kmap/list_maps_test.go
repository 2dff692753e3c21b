package kmap

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

func TestList(t *testing.T) {
	dir := bpffs(t)
	m := newKernelMap(t, namedSpec(uniqueName("list")))
	pins := []string{filepath.Join(dir, "a"), filepath.Join(dir, "sub", "b")}
	if err := os.Mkdir(filepath.Dir(pins[1]), 0o700); err != nil {
		t.Fatal(err)
	}
	first, err := m.Clone()
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	if err := errors.Join(first.Pin(pins[0]), m.Pin(pins[1]), useByProgram(t, m).Pin(filepath.Join(dir, "program"))); err != nil {
		t.Fatal(err)
	}
	put(t, openMap(t, m, Options{}), 0, 42, 1)
	perCPU := newKernelMap(t, &ebpf.MapSpec{Type: ebpf.PerCPUHash, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	large := newKernelMap(t, hashSpec(8, MaxValueSize+1, 1))
	array := newKernelMap(t, arraySpec(ebpf.Array, 8, 3))
	var hidden []*ebpf.Map
	for _, name := range []string{"lb.bss", "mapsync_slots"} {
		spec := arraySpec(ebpf.Array, 8, 1)
		spec.Name = name
		hidden = append(hidden, newKernelMap(t, spec))
	}
	hidden = append(hidden, newKernelMap(t, &ebpf.MapSpec{Type: ebpf.RingBuf, MaxEntries: uint32(os.Getpagesize())}),
		newKernelMap(t, &ebpf.MapSpec{Type: ebpf.ProgramArray, KeySize: 4, ValueSize: 4, MaxEntries: 1}))

	list, omitted, err := List(t.Context())
	if err != nil || omitted < len(hidden) {
		t.Fatalf("list: got %d maps left out, error %v, want at least %d", omitted, err, len(hidden))
	}
	find := func(m *ebpf.Map) *Info {
		i := slices.IndexFunc(list, func(i Info) bool { return i.ID == idOf(t, m) })
		if i < 0 {
			return nil
		}
		return &list[i]
	}
	got := find(m)
	if got == nil || got.Entries != 42 || !slices.Equal(got.Pins, pins) || got.Unsupported != nil || got.KeySize != 8 {
		t.Errorf("list: got map %+v, want a supported map with 42 entries, keys of 8 bytes and pins %q", got, pins)
	}
	if got := find(perCPU); got == nil || got.Unsupported != nil || got.Entries != 0 {
		t.Errorf("list: got per-CPU map %+v, want a supported map with 0 entries", got)
	}
	if got := find(large); got == nil || !errors.Is(got.Unsupported, ErrUnsupported) {
		t.Errorf("list: got map with large values %+v, want ErrUnsupported", got)
	}
	if got := find(array); got == nil || got.Unsupported != nil || got.Entries != 3 {
		t.Errorf("list: got array %+v, want a supported map with 3 entries", got)
	}
	for _, m := range hidden {
		if got := find(m); got != nil {
			t.Errorf("list: got map %+v, want it left out", got)
		}
	}
}

// TestListRefusesOtherTypes: List includes the maps of types that cannot be replicated, with the reason.
func TestListRefusesOtherTypes(t *testing.T) {
	for want, spec := range map[string]*ebpf.MapSpec{
		"its type is LPMTrie": {Type: ebpf.LPMTrie, KeySize: 8, ValueSize: 8, MaxEntries: 1, Flags: unix.BPF_F_NO_PREALLOC},
		"its type is Queue":   {Type: ebpf.Queue, ValueSize: 8, MaxEntries: 1},
		"its type is HashOfMaps; write NAME=REF[KEY] to replicate an inner map": {
			Type: ebpf.HashOfMaps, KeySize: 4, ValueSize: 4, MaxEntries: 1, InnerMap: hashSpec(4, 4, 1),
		},
		"its type is ArrayOfMaps; write NAME=REF[KEY] to replicate an inner map": {
			Type: ebpf.ArrayOfMaps, KeySize: 4, ValueSize: 4, MaxEntries: 1, InnerMap: hashSpec(4, 4, 1),
		},
	} {
		id := idOf(t, newKernelMap(t, spec))
		list, _, err := List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(list, func(i Info) bool { return i.ID == id })
		if i < 0 {
			t.Errorf("list: got no %s, want it with %q", spec.Type, want)
		} else if got := list[i]; !errors.Is(got.Unsupported, ErrUnsupported) || !strings.Contains(got.Unsupported.Error(), want) || got.Entries != -1 {
			t.Errorf("list: got %+v, want the %s with %q and an unknown number of entries", got, spec.Type, want)
		}
	}
}
