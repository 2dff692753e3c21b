package kmap

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
)

// Program is a BPF program of another process.
type Program struct {
	ID   uint32
	Name string // as the kernel reports it: at most 15 bytes
	Type ebpf.ProgramType
}

// ProgramsOfMaps returns the programs of other processes that use each of these maps, in the order of
// their ids. It leaves out programs that use a map only through a map of maps, which the kernel does not
// report. It needs CAP_SYS_ADMIN.
func ProgramsOfMaps(maps []uint32) (map[uint32][]Program, error) {
	programs := make(map[uint32][]Program)
	err := eachProgram(func(p Program, used []ebpf.MapID) {
		for _, m := range used {
			if slices.Contains(maps, uint32(m)) {
				programs[uint32(m)] = append(programs[uint32(m)], p)
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
	return Program{uint32(id), info.Name, info.Type}, used, nil
}
