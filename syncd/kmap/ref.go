package kmap

import (
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"
)

// ErrNotFound is returned, wrapped, when no map answers to a [Ref]. The map may
// yet be created: see [Watcher].
var ErrNotFound = errors.New("map not found")

// ErrAmbiguous is returned, wrapped, when several maps answer to a name.
var ErrAmbiguous = errors.New("several maps have this name")

// maxName is how many bytes of a map's name the kernel keeps (BPF_OBJ_NAME_LEN
// without the final zero).
const maxName = 15

// Ref says which map is meant. Exactly one field is set.
type Ref struct {
	// Name is the map's name in the kernel. The kernel keeps 15 bytes of it,
	// so a longer name stands for its first 15 bytes.
	Name string
	// PinPath is the path of the map's pin in a bpf file system.
	PinPath string
	// ID is the map's number in the kernel: good until the map is gone.
	ID uint32
}

// ParseRef reads a Ref as users write it: "name:ct_map", "pin:/sys/fs/bpf/ct_map"
// or "id:12". Without a prefix, an absolute path is a pin and anything else a name.
func ParseRef(s string) (Ref, error) {
	kind, rest, ok := strings.Cut(s, ":")
	if !ok {
		kind, rest = "name", s
		if strings.HasPrefix(s, "/") {
			kind = "pin"
		}
	}
	if rest == "" {
		return Ref{}, fmt.Errorf("parse map reference %q: nothing named", s)
	}
	switch kind {
	case "name":
		return Ref{Name: rest}, nil
	case "pin":
		if !path.IsAbs(rest) {
			return Ref{}, fmt.Errorf("parse map reference %q: a pin path must be absolute", s)
		}
		return Ref{PinPath: path.Clean(rest)}, nil
	case "id":
		id, err := strconv.ParseUint(rest, 10, 32)
		if err != nil || id == 0 {
			return Ref{}, fmt.Errorf("parse map reference %q: an id is a number from 1", s)
		}
		return Ref{ID: uint32(id)}, nil
	}
	return Ref{}, fmt.Errorf("parse map reference %q: unknown kind %q, want name, pin or id", s, kind)
}

// String gives the form that [ParseRef] reads.
func (r Ref) String() string {
	switch {
	case r.PinPath != "":
		return "pin:" + r.PinPath
	case r.ID != 0:
		return "id:" + strconv.FormatUint(uint64(r.ID), 10)
	}
	return "name:" + r.Name
}

// matches tells whether a map called name in the kernel is meant by r.Name.
func (r Ref) matches(name string) bool {
	return name == r.Name[:min(len(r.Name), maxName)]
}
