package kmap

import (
	"bytes"
	"context"
	"encoding/binary"

	"github.com/cilium/ebpf"
)

// IsArray reports whether a map type is an array. Its keys are the indexes below MaxEntries, and each has a
// value, at first of zeros. For syncd, an element is an entry if a bit of [Options.Carried] is not zero in its value. A
// delete sets the value to zero.
func IsArray(t ebpf.MapType) bool { return t == ebpf.Array || t == ebpf.PerCPUArray }

// isEntry reports whether a value in an array is that of an entry.
func (k *Map) isEntry(value []byte) bool {
	if bytes.Equal(value, k.zero) {
		return false
	}
	for i, mask := range k.carried {
		if value[i]&mask != 0 {
			return true
		}
	}
	return k.carried == nil
}

// readElements reads an array by looking all its indexes up.
func (k *Map) readElements(ctx context.Context, now func() int64, fn ReadFunc) error {
	var found entries
	keys := make([]byte, 0, min(lookupSlots, k.info.MaxEntries)*k.layout.keySize)
	for at := 0; at < k.info.MaxEntries && ctx.Err() == nil; {
		for keys = keys[:0]; at < k.info.MaxEntries && len(keys) < cap(keys); at++ {
			keys = binary.NativeEndian.AppendUint32(keys, uint32(at))
		}
		if err := k.readValues(keys, &found, now, fn); err != nil {
			return err
		}
	}
	return ctx.Err()
}
