package kmap

import (
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
	err := eachProgram(func(id ebpf.ProgramID) {
		p, used := describeProgram(id)
		for _, m := range used {
			if slices.Contains(maps, uint32(m)) {
				programs[uint32(m)] = append(programs[uint32(m)], p)
			}
		}
	})
	return programs, err
}

// describeProgram returns a program and the maps that it uses, none for mapsync's own programs and freed
// programs.
func describeProgram(id ebpf.ProgramID) (Program, []ebpf.MapID) {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return Program{}, nil
	}
	defer release(p)
	info, err := p.Info()
	if err != nil || strings.HasPrefix(info.Name, ownPrefix) {
		return Program{}, nil
	}
	used, _ := info.MapIDs()
	return Program{uint32(id), info.Name, info.Type}, used
}
