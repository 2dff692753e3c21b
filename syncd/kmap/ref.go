package kmap

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"strconv"
	"strings"

	"mapsync/printable"
)

// ErrNotFound is returned, wrapped, if no map matches a [Ref]. The map may be created later: see
// [Watcher].
var ErrNotFound = errors.New("map not found")

// ErrAmbiguous is returned, wrapped, if several maps match a name.
var ErrAmbiguous = errors.New("several maps have this name")

// maxName is the number of bytes of a map's name that the kernel stores (BPF_OBJ_NAME_LEN without
// the terminating zero).
const maxName = 15

// Ref refers to a map. Exactly one of Name, PinPath and ID is set.
type Ref struct {
	// Name is the map's name in the kernel. The kernel stores 15 bytes of it, so a longer name
	// matches by its first 15 bytes.
	Name string
	// PinPath is the path of the map's pin in a bpf file system.
	PinPath string
	// ID is the map's ID in the kernel. It is valid until the map is freed.
	ID uint32
	// InnerKey is empty, or the other fields refer to a map of maps, and the Ref to the map that it has under
	// this key: a number, or 0x and the bytes of the key in hexadecimal.
	InnerKey string
}

// innerKey matches keys of inner maps. openInner checks their sizes.
var innerKey = regexp.MustCompile(`^([0-9]{1,20}|0x([0-9A-Fa-f]{2})+)$`)

// ParseRef parses a Ref as users write it: "name:ct_map", "pin:/sys/fs/bpf/ct_map" or "id:12".
// Without a prefix, an absolute path is a pin and anything else a name. A suffix "[KEY]" is the InnerKey.
func ParseRef(s string) (Ref, error) {
	outer, key, inner := strings.Cut(strings.TrimSuffix(s, "]"), "[")
	if !inner || !strings.HasSuffix(s, "]") {
		return parseOuter(s)
	}
	if !innerKey.MatchString(key) {
		return Ref{}, fmt.Errorf("parse map reference %q: between [ and ], write the key of the inner map as a number, or as 0x and all its bytes in hexadecimal", s)
	}
	r, err := parseOuter(outer)
	r.InnerKey = key
	return r, err
}

func parseOuter(s string) (Ref, error) {
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
		if !printable.IsName(rest) {
			return Ref{}, fmt.Errorf("parse map reference %q: a name has printable characters without spaces", s)
		}
		return Ref{Name: rest}, nil
	case "pin":
		if !path.IsAbs(rest) {
			return Ref{}, fmt.Errorf("parse map reference %q: a pin path must be absolute", s)
		}
		pin := path.Clean(rest)
		if strings.HasSuffix(pin, "]") && strings.Contains(pin, "[") {
			return Ref{}, fmt.Errorf("parse map reference %q: write the key of the inner map at the end, without a slash after it", s)
		}
		return Ref{PinPath: pin}, nil
	case "id":
		id, err := strconv.ParseUint(rest, 10, 32)
		if err != nil || id == 0 {
			return Ref{}, fmt.Errorf("parse map reference %q: an id is a number from 1", s)
		}
		return Ref{ID: uint32(id)}, nil
	}
	return Ref{}, fmt.Errorf("parse map reference %q: unknown kind %q, want name, pin or id", s, kind)
}

// String returns the form that [ParseRef] parses.
func (r Ref) String() string {
	if key := r.InnerKey; key != "" {
		r.InnerKey = ""
		return r.String() + "[" + key + "]"
	}
	switch {
	case r.PinPath != "":
		return "pin:" + r.PinPath
	case r.ID != 0:
		return "id:" + strconv.FormatUint(uint64(r.ID), 10)
	}
	return "name:" + r.Name
}

// matches returns true if r.Name refers to a map with this name in the kernel.
func (r Ref) matches(name string) bool {
	return name == r.Name[:min(len(r.Name), maxName)]
}
