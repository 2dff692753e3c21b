package kmap

import (
	"path/filepath"
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
	found, err := ProgramsOfMaps([]uint32{id, otherID})
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
		if _, err := ProgramsOfMaps([]uint32{id}); !exhausted(err) {
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
