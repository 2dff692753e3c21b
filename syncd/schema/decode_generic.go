package schema

import (
	"fmt"
	"unsafe"
)

// decodeGeneric decodes a field without an op code of its own, starting after its tag. base is the
// address of its struct.
func (d *decoding) decodeGeneric(o *op, pos, end int, base unsafe.Pointer) (next int, err error) {
	x := &d.plan.genericFields[o.n]
	at := unsafe.Add(base, o.off)
	switch {
	case x.packed():
		return d.packed(x, pos, end, at)
	case x.wireType() == 2:
		return d.records(x, o, pos, end, at)
	}
	v, next := d.number(x.class, pos, end)
	if next < 0 || v == 0 {
		return 0, ErrMalformed
	}
	return next, d.storeNumber(x, at, v)
}

// number reads a number without its tag. next is negative if there is none.
func (d *decoding) number(c class, pos, end int) (v uint64, next int) {
	switch c {
	case classFixed32:
		v, next = load64(d.wire, pos)&(1<<32-1), pos+4
	case classFixed64, classTime:
		v, next = load64(d.wire, pos), pos+8
	default:
		return d.varint(pos, end)
	}
	if next > end {
		return 0, -1
	}
	return v, next
}

// storeNumber writes a number from the wire to an element.
func (d *decoding) storeNumber(x *genericField, at unsafe.Pointer, v uint64) error {
	signed := x.from.signed
	switch x.class {
	case classTime:
		return d.storeTime(x, at, int64(v))
	case classSint:
		v = v>>1 ^ -(v & 1)
	case classEnum:
		if v != uint64(int64(int32(v))) {
			return ErrMalformed
		}
		if !signed {
			v &= 1<<32 - 1
		}
	}
	switch {
	case !x.from.fits(v, signed):
		return ErrMalformed
	case x.drop:
		return nil
	case !x.to.fits(v, signed):
		return ErrRange
	case x.sum:
		v += x.to.load(at)
	}
	x.to.store(at, v)
	return nil
}

func (d *decoding) storeTime(x *genericField, at unsafe.Pointer, ns int64) error {
	if x.drop || ns == 0 { // ns is 0 in arrays
		return nil
	}
	v, ok := d.times.fromWall(x.clock, ns)
	if !ok {
		return ErrRange
	}
	x.to.store(at, v)
	return nil
}

// packed reads an array of numbers.
func (d *decoding) packed(x *genericField, pos, end int, at unsafe.Pointer) (next int, err error) {
	size, pos := d.length(pos, end)
	if size <= 0 {
		return 0, ErrMalformed
	}
	end = pos + size
	var v uint64
	for i := uint32(0); pos < end; i++ {
		if v, pos = d.number(x.class, pos, end); pos < 0 || i == x.count {
			return 0, ErrMalformed
		}
		if i >= x.room {
			if v != 0 {
				return 0, ErrRange
			}
			continue
		}
		if err := d.storeNumber(x, unsafe.Add(at, i*x.to.size), v); err != nil {
			return 0, err
		}
	}
	if v == 0 { // the last element
		return 0, ErrMalformed
	}
	return end, nil
}

// records reads bytes, a name, or an array of either.
func (d *decoding) records(x *genericField, o *op, pos, end int, at unsafe.Pointer) (next int, err error) {
	most := int(x.from.size)
	switch x.class {
	case classLink:
		most = maxLink
	case classReference:
		most = MaxMeaning
	}
	for i := uint32(0); ; i++ {
		if i == max(x.count, 1) {
			return 0, ErrMalformed
		}
		b, after := d.bytes(pos, end, most)
		if len(b) > 0 {
			if err := d.storeRecord(x, i, b, at); err != nil {
				return 0, err
			}
		} else if size, body := d.length(pos, end); size == 0 {
			after = body
		} else {
			return 0, ErrMalformed
		}
		if after == end || x.count == 0 || (load64(d.wire, after)^o.tag)&o.mask != 0 {
			if len(b) == 0 { // the last element
				return 0, ErrMalformed
			}
			return after, nil
		}
		pos = after + int(o.tagLen)
	}
}

// storeRecord writes a record, which is not empty, to element i of the field at at.
func (d *decoding) storeRecord(x *genericField, i uint32, b []byte, at unsafe.Pointer) error {
	name := unsafe.String(unsafe.SliceData(b), len(b))
	if x.class != classBytes && !x.class.isName(name) {
		return ErrMalformed
	}
	if x.drop {
		return nil
	}
	if i >= max(x.room, 1) {
		return ErrRange
	}
	at = unsafe.Add(at, i*x.to.size)
	if x.class == classBytes {
		if len(b) > int(x.to.size) {
			return ErrRange
		}
		copy(unsafe.Slice((*byte)(at), len(b)), b)
		return nil
	}
	index, ok := uint32(0), false
	if names := namesOf(d.links, x); names != nil {
		index, ok = names.Index(name)
	}
	if !ok || index == 0 {
		return fmt.Errorf("%w %q", errUnnamed(x.class), name)
	}
	if !x.to.fits(uint64(index), false) {
		return ErrRange
	}
	x.to.store(at, uint64(index))
	return nil
}
