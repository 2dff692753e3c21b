package kmap

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
)

// errNoIDs explains the one privilege that the kernel ties to whole-host listings.
var errNoIDs = errors.New("maps are found by name or id only with CAP_SYS_ADMIN; name the map by its pin path")

// Resolve opens the map that ref means. The error wraps [ErrNotFound] when there is none
// (yet), and [ErrAmbiguous] when a name fits several and nothing tells which is
// in use. A pin is accepted from root, from this process's user and from pinOwners only.
// The caller closes the map.
func Resolve(ref Ref, pinOwners ...uint32) (*ebpf.Map, error) {
	return resolve(ref, 0, pinOwners)
}

// Means reports whether ref, which meant the map with the given id, still does.
func Means(ref Ref, id uint32, pinOwners ...uint32) (bool, error) {
	m, err := resolve(ref, id, pinOwners)
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer release(m)
	info, err := infoOf(m.FD())
	if err != nil {
		return false, err
	}
	return info.id == id, nil
}

// resolve finds ref's map; current, if not 0, is the id of the map known so far.
func resolve(ref Ref, current uint32, pinOwners []uint32) (*ebpf.Map, error) {
	m, err := open(ref, current, pinOwners)
	if err != nil {
		return nil, fmt.Errorf("find map %s: %w", ref, err)
	}
	return m, nil
}

func open(ref Ref, current uint32, pinOwners []uint32) (*ebpf.Map, error) {
	switch {
	case ref.PinPath != "":
		return openPin(ref.PinPath, pinOwners)
	case ref.ID != 0:
		return openID(ref.ID)
	case ref.Name == "":
		return nil, errors.New("no name, pin path or id given")
	}
	found, err := named(ref)
	if err != nil {
		return nil, err
	}
	id, err := choose(found, current)
	if err != nil {
		return nil, err
	}
	return openID(id)
}

func openID(id uint32) (*ebpf.Map, error) {
	m, err := ebpf.NewMapFromID(ebpf.MapID(id))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, ErrNotFound
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("%w: %w", errNoIDs, err)
	}
	return m, err
}

// eachMap calls fn for all maps on this host. fn must not keep m.
func eachMap(ctx context.Context, fn func(m *ebpf.Map, i *mapInfo) error) error {
	for id := ebpf.MapID(0); ctx.Err() == nil; {
		next, err := ebpf.MapGetNextID(id)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if errors.Is(err, fs.ErrPermission) {
			return fmt.Errorf("%w: %w", errNoIDs, err)
		}
		if err != nil {
			return err
		}
		id = next
		m, err := openID(uint32(id))
		if errors.Is(err, ErrNotFound) {
			continue // gone since
		}
		if err != nil {
			return err
		}
		info, err := infoOf(m.FD())
		if err == nil {
			err = fn(m, info)
		}
		if err = errors.Join(err, m.Close()); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// named returns the ids of the maps with ref's name: the hash maps, or if there are
// none the others, of which to say later that they cannot be replicated.
func named(ref Ref) ([]uint32, error) {
	var hash, other []uint32
	err := eachMap(context.Background(), func(_ *ebpf.Map, i *mapInfo) error {
		if !ref.matches(i.nameString()) {
			return nil
		}
		if slices.Contains(replicable, ebpf.MapType(i.typ)) {
			hash = append(hash, i.id)
		} else {
			other = append(other, i.id)
		}
		return nil
	})
	if len(hash) == 0 {
		return other, err
	}
	return hash, err
}

// choose picks the map meant among those with one name. A map that this process
// holds outlives the load balancer that made it, so an old map and its successor
// may both be there: the one that others still use is meant, and when user space
// alone does, the newer. ids are in the order of creation.
func choose(ids []uint32, current uint32) (uint32, error) {
	switch len(ids) {
	case 0:
		return 0, ErrNotFound
	case 1:
		return ids[0], nil
	}
	if current != 0 && ids[len(ids)-1] == current {
		return current, nil
	}
	used, err := inUse(ids)
	if err != nil {
		return 0, err
	}
	if slices.Contains(used, current) {
		return current, nil
	}
	if len(used) == 1 {
		return used[0], nil
	}
	newer := slices.DeleteFunc(slices.Clone(ids), func(id uint32) bool { return id <= current })
	if len(used) == 0 && current != 0 && len(newer) == 1 {
		return newer[0], nil
	}
	return 0, fmt.Errorf("%w: ids %s; name one by id or pin path", ErrAmbiguous, strings.Trim(fmt.Sprint(ids), "[]"))
}

// ownPrefix begins the names of this project's programs: their use of a map is ours.
const ownPrefix = "mapsync_"

// inUse returns those of ids that a program other than ours uses, or a pin holds.
func inUse(ids []uint32) ([]uint32, error) {
	users := map[uint32]bool{}
	err := eachProgram(func(id ebpf.ProgramID) {
		for _, m := range mapsOf(id) {
			users[uint32(m)] = true
		}
	})
	if err != nil {
		return nil, err
	}
	pinned, err := pins()
	if err != nil {
		return nil, err
	}
	for id := range pinned {
		users[id] = true
	}
	return slices.DeleteFunc(slices.Clone(ids), func(id uint32) bool { return !users[id] }), nil
}

// mapsOf returns the maps that a program uses, none for ours and for one that is gone.
func mapsOf(id ebpf.ProgramID) []ebpf.MapID {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return nil
	}
	defer release(p)
	info, err := p.Info()
	if err != nil || strings.HasPrefix(info.Name, ownPrefix) {
		return nil
	}
	ids, _ := info.MapIDs()
	return ids
}

// List describes the hash maps on this host, in the order of their ids, with their pins
// and, where an iterator can be run over them, their number of entries.
func List(ctx context.Context) ([]Info, error) {
	pinned, err := pins()
	if err != nil && !errors.Is(err, os.ErrPermission) {
		return nil, fmt.Errorf("list maps: %w", err)
	}
	counter, err := newCounter()
	if err != nil {
		counter = nil // the numbers of entries are left out
	}
	defer counter.close()
	var list []Info
	err = eachMap(ctx, func(m *ebpf.Map, raw *mapInfo) error {
		if !strings.Contains(m.Type().String(), "Hash") || strings.Contains(m.Type().String(), "OfMaps") {
			return nil
		}
		info, err := Describe(m)
		if err != nil {
			return err
		}
		info.Pins = pinned[raw.id]
		info.Entries = counter.count(ctx, m)
		list = append(list, info)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list maps: %w", err)
	}
	return list, nil
}
