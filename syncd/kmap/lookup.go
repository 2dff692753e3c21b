package kmap

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Lookup reads the values of the given keys, which stand one after the other, and calls
// fn for each in their order: i is the key's place, value is nil unless found. The
// slices are good during the call only. A program's lookup counts as a use of the
// entry where the map is an LRU: use [Map.ForEach] to read all of one.
func (k *Map) Lookup(keys []byte, fn func(i int, key, value []byte, found bool)) error {
	if len(keys)%k.layout.keySize != 0 {
		return fmt.Errorf("look up in map %q: %d bytes are no whole number of keys", k.info.Name, len(keys))
	}
	k.lookupMu.Lock()
	defer k.lookupMu.Unlock()
	if k.looker == nil {
		return k.lookupSingle(keys, fn)
	}
	ks := k.layout.keySize
	for done, n := 0, len(keys)/ks; done < n; {
		count := min(n-done, k.looker.slots)
		if err := k.lookupSome(done, keys[done*ks:][:count*ks], fn); err != nil {
			return fmt.Errorf("look up in map %q: %w", k.info.Name, err)
		}
		done += count
	}
	return nil
}

// lookupSome reads as many keys as there are slots at most.
func (k *Map) lookupSome(first int, keys []byte, fn func(i int, key, value []byte, found bool)) error {
	l := k.looker
	n := len(keys) / l.keySize
	for i := range n {
		e := l.entries[i*l.stride:]
		binary.NativeEndian.PutUint32(e[entryRC:], 0)
		copy(e[entryKey:], keys[i*l.keySize:][:l.keySize])
	}
	if _, err := l.run(n); err != nil {
		return err
	}
	for i := range n {
		e := l.entries[i*l.stride:]
		key, value := keys[i*l.keySize:][:l.keySize:l.keySize], e[l.valueOffset:][:l.valueSize:l.valueSize]
		switch rc := unix.Errno(-int32(binary.NativeEndian.Uint32(e[entryRC:]))); rc {
		case 0:
			fn(first+i, key, value, true)
		case unix.ENOENT:
			fn(first+i, key, nil, false)
		default:
			return rc
		}
	}
	return nil
}

func (k *Map) lookupSingle(keys []byte, fn func(i int, key, value []byte, found bool)) error {
	ks := k.layout.keySize
	value := make([]byte, k.layout.valueSize)
	for i := range len(keys) / ks {
		key := keys[i*ks:][:ks:ks]
		err := mapElem(cmdMapLookupElem, k.m.FD(), key, value, k.lookupFlags())
		if errors.Is(err, unix.ENOENT) {
			fn(i, key, nil, false)
			continue
		}
		if err != nil {
			return fmt.Errorf("look up in map %q: %w", k.info.Name, err)
		}
		k.cleanPadding(value)
		fn(i, key, value, true)
	}
	return nil
}
