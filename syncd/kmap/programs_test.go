package kmap

import (
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
)

// TestProgramsOfMaps finds the program of a load balancer, and none of syncd.
func TestProgramsOfMaps(t *testing.T) {
	spec := ebpf.MapSpec{Type: ebpf.Hash, KeySize: 8, ValueSize: 16, MaxEntries: 10}
	m, other := newKernelMap(t, &spec), newKernelMap(t, &spec)
	useByProgram(t, m)
	openMap(t, m, Options{}) // loads programs of syncd that use the map
	id, otherID := idOf(t, m), idOf(t, other)
	found, err := ProgramsOfMaps(t.Context(), []uint32{id, otherID})
	if err != nil {
		t.Fatal(err)
	}
	if got := found[id]; len(got) != 1 || got[0].ID == 0 || got[0].Name != "lb" || got[0].Type != ebpf.SocketFilter {
		t.Errorf("programs of the map: got %+v, want the socket filter lb", got)
	}
	if got := found[otherID]; len(got) != 0 {
		t.Errorf("programs of another map: got %+v, want none", got)
	}
}

// TestProgramsOfInnerMaps finds the program that uses maps only through maps of maps.
func TestProgramsOfInnerMaps(t *testing.T) {
	spec := ebpf.MapSpec{Type: ebpf.Hash, KeySize: 8, ValueSize: 16, MaxEntries: 10}
	first, second, other := newKernelMap(t, &spec), newKernelMap(t, &spec), newKernelMap(t, &spec)
	var ids []uint32
	for _, m := range []*ebpf.Map{first, second, other} {
		ids = append(ids, idOf(t, m))
	}
	array, hash := newKernelMap(t, outerSpec(ebpf.ArrayOfMaps, 4, &spec)), newKernelMap(t, outerSpec(ebpf.HashOfMaps, 8, &spec))
	for key, m := range []*ebpf.Map{first, second} { // the array has elements without a map
		if err := array.Put(uint32(2*key), m); err != nil {
			t.Fatal(err)
		}
	}
	if err := hash.Put(uint64(7), second); err != nil {
		t.Fatal(err)
	}
	useByProgram(t, array)
	outer, err := outerMaps(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	arrayID, hashID := idOf(t, array), idOf(t, hash)
	wantOuter := map[uint32][]uint32{ids[0]: {arrayID}, ids[1]: {arrayID, hashID}, ids[2]: nil}
	for id, want := range wantOuter {
		if got := outer[id]; !slices.Equal(got, want) {
			t.Errorf("maps of maps of map %d: got %v, want %v", id, got, want)
		}
	}
	found, err := ProgramsOfMaps(t.Context(), ids)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []int{1, 1, 0} {
		if got := found[ids[i]]; len(got) != want {
			t.Errorf("programs of inner map %d: got %+v, want %d", i, got, want)
		}
	}
}

// TestUsersAreUnknownWithoutDescriptors: while this process has no free file descriptor, it cannot list
// the programs and pins that use a map. It does not treat the map as one without users.
func TestUsersAreUnknownWithoutDescriptors(t *testing.T) {
	path := filepath.Join(bpffs(t), "map")
	m := newKernelMap(t, namedSpec("used"))
	if err := m.Pin(path); err != nil {
		t.Fatal(err)
	}
	id := idOf(t, m)
	u := usage{id: id, used: true}
	withoutDescriptors(t, func() {
		if _, err := pinnedMap(path); !exhausted(err) {
			t.Errorf("map of a pin: got error %v, want a lack of descriptors", err)
		}
	})
	useByProgram(t, m)
	withoutDescriptors(t, func() {
		if _, err := ProgramsOfMaps(t.Context(), []uint32{id}); !exhausted(err) {
			t.Errorf("programs of the map: got error %v, want a lack of descriptors", err)
		}
		if u.abandoned(time.Now()) {
			t.Error("map with a program and a pin: got abandoned, want used")
		}
	})
	if programs, _, err := usersOf(id); err != nil || len(programs) != 1 {
		t.Errorf("users of the map: got %v, error %v, want one program", programs, err)
	}
}
