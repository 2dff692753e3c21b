package kmap

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/cilium/ebpf"

	"mapsync/printable"
)

// Program is a BPF program of another process.
type Program struct {
	ID   uint32
	Name string // printable; the kernel reports at most 15 bytes
	Type ebpf.ProgramType
}

// ProgramsOfMaps returns the programs of other processes that use each of these maps, in the order of
// their ids. The kernel reports only the map of maps through which a program uses an inner map: such a
// program counts as a user of all its inner maps. It needs CAP_SYS_ADMIN.
func ProgramsOfMaps(ctx context.Context, maps []uint32) (map[uint32][]Program, error) {
	outer, err := outerMaps(ctx)
	if err != nil {
		return nil, err
	}
	through := make(map[uint32][]uint32) // the maps that a program may use if the kernel reports the key
	for _, m := range maps {
		through[m] = append(through[m], m)
		for _, o := range outer[m] {
			through[o] = append(through[o], m)
		}
	}
	programs := make(map[uint32][]Program)
	err = eachProgram(func(p Program, used []ebpf.MapID) {
		for _, u := range used {
			for _, m := range through[uint32(u)] {
				if found := programs[m]; len(found) == 0 || found[len(found)-1].ID != p.ID {
					programs[m] = append(found, p)
				}
			}
		}
	})
	return programs, err
}

// eachProgram calls fn with each program of this host and the maps that it uses. It leaves out mapsync's own
// programs and those that the kernel does not describe, such as freed ones. It fails if this process has no
// free descriptor, because an incomplete list would look like a map without users.
func eachProgram(fn func(p Program, used []ebpf.MapID)) error {
	for id := ebpf.ProgramID(0); ; {
		next, err := ebpf.ProgramGetNextID(id)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("list programs: %w", err)
		}
		id = next
		p, used, err := describeProgram(id)
		if exhausted(err) {
			return fmt.Errorf("describe program %d: %w", id, err)
		}
		if err == nil && !strings.HasPrefix(p.Name, ownPrefix) {
			fn(p, used)
		}
	}
}

// describeProgram returns a program and the maps that it uses.
func describeProgram(id ebpf.ProgramID) (Program, []ebpf.MapID, error) {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return Program{}, nil, err
	}
	defer release(p)
	info, err := p.Info()
	if err != nil {
		return Program{}, nil, err
	}
	used, _ := info.MapIDs()
	return Program{uint32(id), printable.Text(info.Name), info.Type}, used, nil
}
