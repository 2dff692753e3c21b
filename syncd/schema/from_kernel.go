package schema

import (
	"errors"
	"fmt"
	"io/fs"
	"unsafe"

	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"
)

// BTFIDs identify the types of a live map. In bpf_map_info they are btf_id, btf_key_type_id and
// btf_value_type_id.
type BTFIDs struct{ BTF, Key, Value uint32 }

// FromMap builds the schema of a live map. The schema is opaque if the map has no BTF. keySize and
// valueSize are the map's sizes in bytes, for a per-CPU map the size of one CPU's value. They must
// equal the sizes of the types. Reading BTF by ID needs CAP_SYS_ADMIN. Without it the error wraps
// [fs.ErrPermission], and the caller decides whether [FromSizes] is sufficient.
func FromMap(name string, ids BTFIDs, keySize, valueSize int) (*Schema, error) {
	if ids.BTF == 0 || ids.Key == 0 || ids.Value == 0 {
		return FromSizes(name, keySize, valueSize), nil
	}
	key, value, err := loadTypes(ids)
	if errors.Is(err, fs.ErrPermission) {
		return nil, fmt.Errorf("read BTF %d of map %q, which needs CAP_SYS_ADMIN: %w", ids.BTF, name, err)
	}
	if err != nil {
		return nil, fmt.Errorf("read BTF %d of map %q: %w", ids.BTF, name, err)
	}
	s, err := FromTypes(name, key, value)
	if err != nil {
		return nil, err
	}
	if s.Key.Size != keySize || s.Value.Size != valueSize {
		return nil, fmt.Errorf("read types of map %q: %w: they have %d + %d bytes, the map %d + %d",
			name, ErrType, s.Key.Size, s.Value.Size, keySize, valueSize)
	}
	return s, nil
}

// loadTypes reads the two types. The library may panic on invalid BTF.
func loadTypes(ids BTFIDs) (key, value btf.Type, err error) {
	defer recovered(&err)
	h, err := btf.NewHandleFromID(btf.ID(ids.BTF))
	if err != nil {
		return nil, nil, err
	}
	defer h.Close()
	size, err := btfSize(h.FD())
	if err != nil {
		return nil, nil, err
	}
	if size > maxBTF {
		return nil, nil, fmt.Errorf("it has %d bytes, more than %d", size, maxBTF)
	}
	spec, err := h.Spec(nil)
	if err != nil {
		return nil, nil, err
	}
	if key, err = spec.TypeByID(btf.TypeID(ids.Key)); err != nil {
		return nil, nil, fmt.Errorf("find key type %d: %w", ids.Key, err)
	}
	if value, err = spec.TypeByID(btf.TypeID(ids.Value)); err != nil {
		return nil, nil, fmt.Errorf("find value type %d: %w", ids.Value, err)
	}
	return key, value, nil
}

// btfSize returns the size of the BTF in bytes. The library reads the size but does not export it.
func btfSize(fd int) (uint32, error) {
	const cmdObjGetInfoFD = 15
	var info struct { // the first fields of struct bpf_btf_info
		btf     uint64
		size    uint32
		id      uint32
		name    uint64
		nameLen uint32
		kernel  uint32
	}
	attr := struct {
		fd, length uint32
		info       unsafe.Pointer
	}{uint32(fd), uint32(unsafe.Sizeof(info)), unsafe.Pointer(&info)}
	_, _, errno := unix.Syscall(unix.SYS_BPF, cmdObjGetInfoFD, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	if errno != 0 {
		return 0, fmt.Errorf("read BTF info: %w", errno)
	}
	return info.size, nil
}
