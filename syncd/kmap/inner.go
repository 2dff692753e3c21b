package kmap

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// maxInnerKeys limits the keys of a map of maps that InnerKeys returns.
const maxInnerKeys = 4096

// InnerKeys returns the keys under which a map of maps has inner maps, each as in Ref.InnerKey. It ignores the
// InnerKey of ref. The error wraps ErrNotFound if the map of maps does not exist (yet).
func InnerKeys(ref Ref, pinOwners ...uint32) (keys []string, err error) {
	ref.InnerKey = ""
	outer, err := openOuter(ref, pinOwners)
	if err != nil {
		return nil, fmt.Errorf("find map %s: %w", ref, err)
	}
	defer release(outer)
	key, id := make([]byte, outer.KeySize()), make([]byte, 4)
	for next := []byte(nil); ; {
		if err := outer.NextKey(anyKey(next), &key); errors.Is(err, ebpf.ErrKeyNotExist) {
			return keys, nil
		} else if err != nil {
			return nil, fmt.Errorf("read the keys of map %s: %w", ref, err)
		}
		next = append(next[:0], key...)
		// An array of maps has keys without a map.
		if mapElem(cmdMapLookupElem, outer.FD(), key, id, 0) == nil {
			keys = append(keys, decodeKey(key))
		}
		if len(keys) == maxInnerKeys {
			return nil, fmt.Errorf("map %s has more than %d inner maps", ref, maxInnerKeys)
		}
	}
}

// anyKey returns nil for a key of no bytes, which requests the first key.
func anyKey(key []byte) any {
	if len(key) == 0 {
		return nil
	}
	return key
}

// openOuter opens a map of maps.
func openOuter(ref Ref, pinOwners []uint32) (*ebpf.Map, error) {
	outer, err := openRef(ref, 0, pinOwners)
	if err != nil {
		return nil, err
	}
	if t := outer.Type(); t != ebpf.ArrayOfMaps && t != ebpf.HashOfMaps {
		release(outer)
		return nil, fmt.Errorf("%w: its type %s has no inner maps", ErrUnsupported, t)
	}
	return outer, nil
}

// openInner opens the map that a map of maps has under the key of ref. The error wraps ErrNotFound if it has none, or
// does not exist.
func openInner(ref Ref, pinOwners []uint32) (*ebpf.Map, error) {
	key := ref.InnerKey
	ref.InnerKey = ""
	outer, err := openOuter(ref, pinOwners)
	if err != nil {
		return nil, err
	}
	defer release(outer)
	encoded, err := encodeKey(key, int(outer.KeySize()))
	if err != nil {
		return nil, err
	}
	id := make([]byte, 4)
	err = mapElem(cmdMapLookupElem, outer.FD(), encoded, id, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil, ErrNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("look up the inner map: %w", err)
	}
	return openID(binary.NativeEndian.Uint32(id))
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

// decodeKey is the reverse of encodeKey.
func decodeKey(key []byte) string {
	switch len(key) {
	case 1:
		return strconv.FormatUint(uint64(key[0]), 10)
	case 2:
		return strconv.FormatUint(uint64(binary.NativeEndian.Uint16(key)), 10)
	case 4:
		return strconv.FormatUint(uint64(binary.NativeEndian.Uint32(key)), 10)
	case 8:
		return strconv.FormatUint(binary.NativeEndian.Uint64(key), 10)
	}
	return "0x" + hex.EncodeToString(key)
}
