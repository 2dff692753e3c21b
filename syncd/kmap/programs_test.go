package kmap

import (
	"testing"

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
