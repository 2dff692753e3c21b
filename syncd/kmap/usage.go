package kmap

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/cilium/ebpf"
)

// A map that this process holds by name or id does not end with its load balancer. What
// can be seen is who uses it: programs, and pins. When programs have used it and nothing
// does any more, it is let go. If it is still there when the kernel has had time
// to free it, somebody else holds it after all (a process that has no program just now, or a map
// of maps), and it is taken again.

const (
	// lookAround is how often all programs and pins of the host are gone through for a
	// map of which no program is known.
	lookAround = 5 * time.Second
	// freeTime is how long the kernel may take to free a map that nobody holds: it frees
	// the programs that use it first, and each of these steps waits for all processors.
	freeTime = 3 * time.Second
)

// usage is what is known of who uses one map.
type usage struct {
	id       uint32
	programs []ebpf.ProgramID // that used it when last looked around
	used     bool             // a program did, once
	looked   time.Time        // around, last
}

// left reports whether programs used the map and nothing that can be seen does any more.
// What cannot be told is no.
func (u *usage) left(now time.Time) bool {
	u.programs = slices.DeleteFunc(u.programs, func(id ebpf.ProgramID) bool { return !programLives(id) })
	if len(u.programs) > 0 || now.Sub(u.looked) < lookAround {
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
	u.looked = now
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

// usersOf returns the programs other than ours that use a map, and whether it is pinned. It
// does not look for pins where there are programs.
func usersOf(id uint32) (programs []ebpf.ProgramID, pinned bool, err error) {
	err = eachProgram(func(p ebpf.ProgramID) {
		if slices.Contains(mapsOf(p), ebpf.MapID(id)) {
			programs = append(programs, p)
		}
	})
	if err != nil || len(programs) > 0 {
		return programs, false, err
	}
	paths, err := pins()
	return nil, len(paths[id]) > 0, err
}

// eachProgram calls fn with the ids of all programs on this host.
func eachProgram(fn func(ebpf.ProgramID)) error {
	for id := ebpf.ProgramID(0); ; {
		next, err := ebpf.ProgramGetNextID(id)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("list programs: %w", err)
		}
		id = next
		fn(id)
	}
}
