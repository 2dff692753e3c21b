package kmap

import (
	"errors"
	"io/fs"
	"slices"
	"time"

	"github.com/cilium/ebpf"
)

// A map that this process holds by name or ID outlives its load balancer. Programs and pins are the
// only visible users of a map. When programs have used a map and neither programs nor pins use it
// any more, syncd releases it. The kernel then has time to free the map. If it still exists
// afterwards, another process holds it, which has no program at the moment, or a map of maps holds
// it. syncd then acquires the map again.

const (
	// usageInterval is the interval of the search through all programs and pins of the host, for a
	// map without known programs.
	usageInterval = 5 * time.Second
	// freeGrace is the time that the kernel may need to free a map without users. It frees the
	// programs that use the map first, and each of these steps waits for all processors.
	freeGrace = 3 * time.Second
)

// usage describes the users of one map.
type usage struct {
	id        uint32
	programs  []ebpf.ProgramID // programs that used the map at the last search
	used      bool             // a program has used the map
	checkedAt time.Time        // time of the last search
}

// abandoned reports whether programs used the map and no visible user does any more. It returns
// false if the users cannot be determined.
func (u *usage) abandoned(now time.Time) bool {
	u.programs = slices.DeleteFunc(u.programs, func(id ebpf.ProgramID) bool { return !programLives(id) })
	if len(u.programs) > 0 || now.Sub(u.checkedAt) < usageInterval {
		return false
	}
	programs, pinned, err := usersOf(u.id)
	if err != nil {
		return false
	}
	if u.programs = programs; len(programs) > 0 {
		u.used = true
		return false
	}
	if u.used && !pinned {
		return true
	}
	u.checkedAt = now
	return false
}

func programLives(id ebpf.ProgramID) bool {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}
	release(p)
	return true
}

// usersOf returns the programs of others that use a map, and whether it is pinned. It searches for
// pins only if no program uses the map.
func usersOf(id uint32) (programs []ebpf.ProgramID, pinned bool, err error) {
	err = eachProgram(func(p Program, used []ebpf.MapID) {
		if slices.Contains(used, ebpf.MapID(id)) {
			programs = append(programs, ebpf.ProgramID(p.ID))
		}
	})
	if err != nil || len(programs) > 0 {
		return programs, false, err
	}
	paths, err := listPins()
	return nil, len(paths[id]) > 0, err
}
