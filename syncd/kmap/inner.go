package kmap

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// innerTries is the number of lookups of an inner map that is replaced before it is opened.
const innerTries = 3

// openInner opens the map that a map of maps has under the key of ref. The error wraps ErrNotFound if it has none, or
// does not exist.
func openInner(ref Ref, pinOwners []uint32) (*ebpf.Map, error) {
	key := ref.InnerKey
	ref.InnerKey = ""
	outer, err := openRef(ref, 0, pinOwners)
	if err != nil {
		return nil, err
	}
	defer release(outer)
	if t := outer.Type(); t != ebpf.ArrayOfMaps && t != ebpf.HashOfMaps {
		return nil, fmt.Errorf("%w: its type %s has no inner maps", ErrUnsupported, t)
	}
	encoded, err := encodeKey(key, int(outer.KeySize()))
	if err != nil {
		return nil, err
	}
	id := make([]byte, 4)
	var inner *ebpf.Map
	for range innerTries {
		err = mapElem(cmdMapLookupElem, outer.FD(), encoded, id, 0)
		if errors.Is(err, unix.ENOENT) {
			return nil, ErrNotFound
		}
		if err != nil {
			return nil, fmt.Errorf("look up the inner map: %w", err)
		}
		if inner, err = openID(binary.NativeEndian.Uint32(id)); !errors.Is(err, ErrNotFound) {
			break
		}
	}
	return inner, err
}

// outerMaps returns the maps of maps of this host in which each inner map is, by the id of the inner map. A map that
// comes or goes meanwhile may be absent. So may those of a map of maps that changes all
// the time. It needs CAP_SYS_ADMIN.
func outerMaps(ctx context.Context) (map[uint32][]uint32, error) {
	outer := make(map[uint32][]uint32)
	err := eachMap(ctx, func(m *ebpf.Map, i *mapInfo) error {
		if t := m.Type(); t != ebpf.ArrayOfMaps && t != ebpf.HashOfMaps {
			return nil
		}
		var err error
		for range innerTries {
			if err = addInner(ctx, m, i.id, outer); !errors.Is(err, ebpf.ErrIterationAborted) {
				break
			}
		}
		if exhausted(err) || ctx.Err() != nil {
			return err
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list maps of maps: %w", err)
	}
	return outer, nil
}

// addInner adds the id of a map of maps to those of each of its inner maps. The error wraps ErrIterationAborted if
// the map changes too often meanwhile.
func addInner(ctx context.Context, m *ebpf.Map, id uint32, outer map[uint32][]uint32) error {
	value := make([]byte, 4)
	return EachKey(ctx, m, nil, func(key []byte) error {
		err := mapElem(cmdMapLookupElem, m.FD(), key, value, 0)
		if errors.Is(err, unix.ENOENT) { // it has left, or the element of an array has no map
			return nil
		}
		if err != nil {
			return fmt.Errorf("look up the inner map: %w", err)
		}
		inner := binary.NativeEndian.Uint32(value)
		if of := outer[inner]; len(of) == 0 || of[len(of)-1] != id {
			outer[inner] = append(of, id)
		}
		return nil
	})
}

// encodeKey returns the bytes of a key that a user wrote as a number, or as 0x and all bytes in hexadecimal.
func encodeKey(text string, size int) ([]byte, error) {
	if digits, ok := strings.CutPrefix(text, "0x"); ok {
		key, err := hex.DecodeString(digits)
		if err != nil || len(key) != size {
			return nil, fmt.Errorf("inner map %q: write 0x and the %d bytes of the key in hexadecimal", text, size)
		}
		return key, nil
	}
	key := make([]byte, 8)
	n, err := strconv.ParseUint(text, 10, 8*min(size, 8))
	switch size {
	case 1:
		key[0] = byte(n)
	case 2:
		binary.NativeEndian.PutUint16(key, uint16(n))
	case 4:
		binary.NativeEndian.PutUint32(key, uint32(n))
	case 8:
		binary.NativeEndian.PutUint64(key, n)
	default:
		err = strconv.ErrSyntax
	}
	if err != nil {
		return nil, fmt.Errorf("inner map %q: write a number for a key of 1, 2, 4 or 8 bytes, or 0x and the %d bytes of the key in hexadecimal",
			text, size)
	}
	return key[:size], nil
}
