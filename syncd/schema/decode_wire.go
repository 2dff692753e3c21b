package schema

import "unsafe"

// This file reads numbers and records from wire bytes.

// load64 returns the 8 bytes at pos, with zeros beyond the end.
func load64(b []byte, pos int) uint64 {
	if pos+8 <= len(b) {
		return *(*uint64)(unsafe.Add(unsafe.Pointer(unsafe.SliceData(b)), pos))
	}
	return loadEnd(b, pos)
}

func loadEnd(b []byte, pos int) uint64 {
	if len(b) >= 8 {
		missing := uint(pos + 8 - len(b))
		return *(*uint64)(unsafe.Add(unsafe.Pointer(unsafe.SliceData(b)), len(b)-8)) >> (8 * missing)
	}
	var v uint64
	for i := len(b) - 1; i >= pos; i-- {
		v = v<<8 | uint64(b[i])
	}
	return v
}

// joined returns the number whose 7-bit groups are in the bytes of x.
func joined(x uint64) uint64 {
	x = x&0x007f007f007f007f | x&0x7f007f007f007f00>>1
	x = x&0x00003fff00003fff | x&0x3fff00003fff0000>>2
	return x&0x000000000fffffff | x&0x0fffffff00000000>>4
}

// varint reads a varint of any length. next is negative if the varint is not in its shortest form,
// or does not end before end.
func (d *decoding) varint(pos, end int) (v uint64, next int) {
	for shift := uint(0); pos < end && shift < 64; shift += 7 {
		b := d.wire[pos]
		pos++
		v |= uint64(b&0x7f) << shift
		if b < 0x80 {
			if b == 0 && shift > 0 || shift == 63 && b > 1 {
				break
			}
			return v, pos
		}
	}
	return 0, -1
}

// length reads the length of a record. size is negative if the record does not end before end.
func (d *decoding) length(pos, end int) (size, next int) {
	v, next := d.varint(pos, end)
	if next < 0 || v > uint64(end-next) {
		return -1, pos
	}
	return int(v), next
}

// bytes reads a record of at most most bytes whose last byte is not zero. It returns an empty slice
// for any other record.
func (d *decoding) bytes(pos, end, most int) (b []byte, next int) {
	size, pos := d.length(pos, end)
	if size <= 0 || size > most || d.wire[pos+size-1] == 0 {
		return nil, pos
	}
	return d.wire[pos : pos+size], pos + size
}
