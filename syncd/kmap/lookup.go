package kmap

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// Lookup reads the values of the given keys, which are concatenated in keys, like lookupEntries. It translates keys and values.
func (k *Map) Lookup(keys []byte, fn func(i int, key, value []byte, found bool)) error {
	if k.translation == nil {
		return k.lookupEntries(keys, fn)
	}
	size := k.layout.keySize
	stored, with := make([]byte, 0, len(keys)), make([]int, 0, len(keys)/size) // the keys that have an id, and their indexes
	for i := range len(keys) / size {
		stored = append(stored, keys[i*size:][:size]...)
		if ok, _ := k.translation.ToKernel(stored[len(stored)-size:], nil); !ok {
			stored = stored[:len(stored)-size]
			continue
		}
		with = append(with, i)
	}
	next := 0
	missing := func(before int) {
		for ; next < before; next++ {
			fn(next, keys[next*size:][:size:size], nil, false)
		}
	}
	err := k.lookupEntries(stored, func(i int, key, value []byte, found bool) {
		missing(with[i])
		if found {
			k.translation.FromKernel(key, value)
		}
		fn(next, keys[next*size:][:size:size], value, found)
		next++
	})
	if err == nil {
		missing(len(keys) / size)
	}
	return err
}

// Peek returns the value of a key, translated, or nil if the map has no entry of it. It does not count as a use of an entry in an LRU map. It
// fails with os.ErrClosed after Close.
func (k *Map) Peek(key []byte) (value []byte, err error) {
	err = k.whileOpen(func() error {
		stored := slices.Clone(key)
		if k.translation != nil {
			if ok, _ := k.translation.ToKernel(stored, nil); !ok {
				return nil
			}
		}
		lookup := k.lookupUnused
		if k.drained != nil {
			lookup = k.lookup
		}
		return lookup(stored, func(_ int, stored, found []byte, some bool) {
			if some && (k.zero == nil || k.isEntry(found)) {
				value = slices.Clone(found)
			}
			if value != nil && k.translation != nil {
				k.translation.FromKernel(stored, value)
			}
		})
	})
	return value, err
}

// lookupEntries reads the values of the given keys, which are concatenated in keys. It calls fn for each
// key in order: i is the index of the key, and value is nil if the key is not found. The slices are
// valid only during the call. In an LRU map, a lookup by a program counts as a use of the entry:
// use [Map.ForEach] to read a whole LRU map.
func (k *Map) lookupEntries(keys []byte, fn func(i int, key, value []byte, found bool)) error {
	if k.zero == nil {
		return k.lookup(keys, fn)
	}
	return k.lookup(keys, func(i int, key, value []byte, found bool) {
		if found && !k.isEntry(value) {
			value, found = nil, false
		}
		fn(i, key, value, found)
	})
}

// lookup is Lookup, but also returns the elements of an array that are not entries.
func (k *Map) lookup(keys []byte, fn func(i int, key, value []byte, found bool)) error {
	if len(keys)%k.layout.keySize != 0 {
		return fmt.Errorf("look up in map %q: key buffer of %d bytes is not a multiple of the key size", k.info.Name, len(keys))
	}
	k.lookupMu.Lock()
	defer k.lookupMu.Unlock()
	if k.drained != nil {
		return k.lookupDrained(keys, fn)
	}
	return k.lookupStored(keys, fn)
}

// lookupStored is lookup without what a drained map adds to sums. The lock of lookups is held.
func (k *Map) lookupStored(keys []byte, fn func(i int, key, value []byte, found bool)) error {
	if k.lookupProgram == nil {
		return k.lookupSingle(keys, fn)
	}
	ks := k.layout.keySize
	for done, n := 0, len(keys)/ks; done < n; {
		count := min(n-done, k.lookupProgram.slots)
		if err := k.lookupSome(done, keys[done*ks:][:count*ks], fn); err != nil {
			return fmt.Errorf("look up in map %q: %w", k.info.Name, err)
		}
		done += count
	}
	return nil
}

// lookupSome reads at most as many keys as the program has slots.
func (k *Map) lookupSome(first int, keys []byte, fn func(i int, key, value []byte, found bool)) error {
	l := k.lookupProgram
	n := len(keys) / l.keySize
	for i := range n {
		e := l.entries[i*l.stride:]
		binary.NativeEndian.PutUint32(e[entryRC:], 0)
		copy(e[entryKey:], keys[i*l.keySize:][:l.keySize])
	}
	if _, err := l.run(0, n); err != nil {
		return err
	}
	for i := range n {
		e := l.entries[i*l.stride:]
		key, value := keys[i*l.keySize:][:l.keySize:l.keySize], e[l.valueOffset:][:l.valueSize:l.valueSize]
		if err := l.again(i, key); err != nil {
			return err
		}
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

// lookupTries is the maximum number of lookups of a key whose entry is replaced meanwhile.
const lookupTries = 100

// again repeats the lookup of entry i while the program returns the value of another key: the kernel has
// reused the element of a deleted key.
func (s *sharedProgram) again(i int, key []byte) error {
	e := s.entries[i*s.stride:]
	for try := 0; !bytes.Equal(e[entryKey:][:s.keySize], key); try++ {
		if try == lookupTries {
			return fmt.Errorf("the entry of a key changes all the time")
		}
		binary.NativeEndian.PutUint32(e[entryRC:], 0)
		copy(e[entryKey:], key)
		if _, err := s.run(i, i+1); err != nil {
			return err
		}
	}
	return nil
}

// lookupUnused is Lookup by bpf(2), which does not count as a use of an entry in an LRU map.
func (k *Map) lookupUnused(keys []byte, fn func(i int, key, value []byte, found bool)) error {
	k.lookupMu.Lock()
	defer k.lookupMu.Unlock()
	return k.lookupSingle(keys, fn)
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
