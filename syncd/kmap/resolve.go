package kmap

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
)

// errNoIDs names the privilege that the kernel requires to list the maps of the host.
var errNoIDs = errors.New("maps are found by name or id only with CAP_SYS_ADMIN; name the map by its pin path")

// Resolve opens the map that ref refers to. The error wraps [ErrNotFound] if the map does not exist
// (yet), and [ErrAmbiguous] if several maps have the name and their use does not identify one. It
// accepts pins only of root, of this process's user and of pinOwners. The caller closes the map.
func Resolve(ref Ref, pinOwners ...uint32) (*ebpf.Map, error) {
	return resolve(ref, 0, pinOwners)
}

// RefersTo reports whether ref still refers to the map with the given ID.
func RefersTo(ref Ref, id uint32, pinOwners ...uint32) (bool, error) {
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

// resolve opens the map of ref. current is the ID of the map found before, or 0.
func resolve(ref Ref, current uint32, pinOwners []uint32) (*ebpf.Map, error) {
	m, err := openRef(ref, current, pinOwners)
	if err != nil {
		return nil, fmt.Errorf("find map %s: %w", ref, err)
	}
	return m, nil
}

func openRef(ref Ref, current uint32, pinOwners []uint32) (*ebpf.Map, error) {
	if ref.InnerKey != "" {
		return openInner(ref, pinOwners)
	}
	switch {
	case ref.PinPath != "":
		return openPin(ref.PinPath, pinOwners)
	case ref.ID != 0:
		return openID(ref.ID)
	case ref.Name == "":
		return nil, errors.New("no name, pin path or id given")
	}
	found, err := idsByName(ref)
	if err != nil {
		return nil, err
	}
	id, err := chooseID(found, current)
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
			continue // freed in the meantime
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

// idsByName returns the IDs of the hash maps with ref's name. Without hash maps it returns those of the arrays, and
// without these those of other types, for which a later error reports that they cannot be replicated.
func idsByName(ref Ref) ([]uint32, error) {
	var hash, array, other []uint32
	err := eachMap(context.Background(), func(_ *ebpf.Map, i *mapInfo) error {
		switch t := ebpf.MapType(i.typ); {
		case !ref.matches(i.nameString()):
		case IsArray(t):
			array = append(array, i.id)
		case slices.Contains(replicable, t):
			hash = append(hash, i.id)
		default:
			other = append(other, i.id)
		}
		return nil
	})
	for _, ids := range [][]uint32{hash, array} {
		if len(ids) > 0 {
			return ids, err
		}
	}
	return other, err
}

// chooseID selects one of several maps with the same name. A map that this process holds outlives
// the load balancer that created it, so an old map and its successor may exist together. chooseID
// selects the map that others still use. If only user space uses them, it selects the newer map.
// ids are in the order of creation.
func chooseID(ids []uint32, current uint32) (uint32, error) {
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

// ownPrefix is the prefix of the names of mapsync's own programs. Their use of a map does not
// count.
const ownPrefix = "mapsync_"

// inUse returns those of ids that a program of others uses, or that are pinned.
func inUse(ids []uint32) ([]uint32, error) {
	users := map[uint32]bool{}
	err := eachProgram(func(_ Program, used []ebpf.MapID) {
		for _, m := range used {
			users[uint32(m)] = true
		}
	})
	if err != nil {
		return nil, err
	}
	pinned, err := listPins()
	if err != nil {
		return nil, err
	}
	for id := range pinned {
		users[id] = true
	}
	return slices.DeleteFunc(slices.Clone(ids), func(id uint32) bool { return !users[id] }), nil
}
