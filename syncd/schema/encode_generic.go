package schema

import (
	"unsafe"

	"mapsync/printable"
)

// encodeGeneric encodes a field without an op code of its own. base is the address of its struct.
func (e *encoding) encodeGeneric(o *op, n int, base unsafe.Pointer) int {
	x := &e.plan.genericFields[o.n]
	at := unsafe.Add(base, x.from.off)
	switch {
	case x.packed():
		return e.packed(x, o, n, at)
	case x.class == classLink, x.class == classReference:
		return e.names(x, o, n, at)
	case x.class == classBytes:
		return e.byteArrays(x, o, n, at)
	}
	v := e.wire(x, at)
	if v == 0 {
		return n
	}
	*(*uint64)(unsafe.Add(e.out, n)) = o.tag
	return e.put(x.class, n+int(o.tagLen), v)
}

// wire returns the element at p as a varint or as the bits of a fixed number. 0 means that it is
// not sent.
func (e *encoding) wire(x *genericField, p unsafe.Pointer) uint64 {
	v := x.from.load(p)
	switch x.class {
	case classSint:
		return v<<1 ^ uint64(int64(v)>>63)
	case classEnum:
		return uint64(int64(int32(v)))
	case classTime:
		if v == 0 {
			return 0
		}
		ns, ok := e.times.toWall(x.clock, v)
		if !ok {
			return 0
		}
		return uint64(ns)
	}
	return v
}

// put writes a number without its tag.
func (e *encoding) put(c class, n int, v uint64) int {
	switch c {
	case classFixed32:
		*(*uint32)(unsafe.Add(e.out, n)) = uint32(v)
		return n + 4
	case classFixed64, classTime:
		*(*uint64)(unsafe.Add(e.out, n)) = v
		return n + 8
	}
	return putVarint(e.out, n, v)
}

// packed writes an array of numbers as one record.
func (e *encoding) packed(x *genericField, o *op, n int, at unsafe.Pointer) int {
	size := int(x.from.size)
	count := (trimmed(at, int(x.count)*size) + size - 1) / size
	start := n + int(o.tagLen) + 1
	end := start
	*(*uint64)(unsafe.Add(e.out, n)) = o.tag
	next := start
	for i := range count {
		v := e.wire(x, unsafe.Add(at, i*size))
		next = e.put(x.class, next, v)
		if v != 0 {
			end = next // excludes trailing times that cannot be converted
		}
	}
	return closeMessage(e.out, start, end, int(o.tagLen))
}

// names writes a name or a meaning, or an array of names. A number without a name is written like 0.
func (e *encoding) names(x *genericField, o *op, n int, at unsafe.Pointer) int {
	end := n
	for i := range max(x.count, 1) {
		index := x.from.load(unsafe.Add(at, i*x.from.size))
		name := ""
		if index != 0 {
			if name = e.name(x, index); name == "" {
				e.unnamed = errUnnamed(x.class)
			}
		}
		n = putText(e.out, n, o, name)
		if name != "" {
			end = n
		}
	}
	return end
}

// name returns the name of an interface or the meaning of a reference, or "" if there is none that can be sent.
func (e *encoding) name(x *genericField, index uint64) string {
	names := namesOf(e.links, x)
	if names == nil || index > 1<<32-1 {
		return ""
	}
	name, ok := names.Name(uint32(index))
	if !ok || !x.class.isName(name) {
		return ""
	}
	return name
}

// namesOf returns the names of the numbers of a field, or nil.
func namesOf(links Links, x *genericField) Links {
	if x.class == classReference {
		return referenceIn(links, x.reference)
	}
	return links
}

// errUnnamed returns the error about a number without a name.
func errUnnamed(c class) error {
	if c == classReference {
		return ErrReference
	}
	return ErrLink
}

// isName reports whether name is valid as a name of the class.
func (c class) isName(name string) bool {
	if c == classReference {
		return isMeaning(name)
	}
	return isLink(name)
}

// isLink reports whether name is valid as a name of an interface.
func isLink(name string) bool {
	return name != "" && len(name) <= maxLink && printable.IsName(name)
}

// byteArrays writes one record of bytes per element.
func (e *encoding) byteArrays(x *genericField, o *op, n int, at unsafe.Pointer) int {
	size := int(x.from.size)
	count := (trimmed(at, int(max(x.count, 1))*size) + size - 1) / size
	for i := range count {
		element := unsafe.Add(at, i*size)
		n = putBytes(e.out, n, o, unsafe.Slice((*byte)(element), trimmed(element, size)))
	}
	return n
}

// putText is putBytes for a string.
func putText(out unsafe.Pointer, n int, o *op, s string) int {
	*(*uint64)(unsafe.Add(out, n)) = o.tag
	n = putVarint(out, n+int(o.tagLen), uint64(len(s)))
	copy(unsafe.Slice((*byte)(unsafe.Add(out, n)), len(s)), s)
	return n + len(s)
}
