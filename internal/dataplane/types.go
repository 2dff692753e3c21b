// Package dataplane has the layouts of maps of public eBPF data planes, for tests of profiles: names, types and offsets of their
// keys and values.
package dataplane

import (
	"fmt"

	"github.com/cilium/ebpf/btf"
)

var (
	u8  = &btf.Int{Name: "unsigned char", Size: 1}
	u16 = &btf.Int{Name: "unsigned short", Size: 2}
	u32 = &btf.Int{Name: "unsigned int", Size: 4}
	u64 = &btf.Int{Name: "unsigned long long", Size: 8}

	be16 = &btf.Typedef{Name: "__be16", Type: u16}
	be32 = &btf.Typedef{Name: "__be32", Type: u32}
)

// member is a member of a struct or union. bits is the width of a bitfield.
type member struct {
	name string
	typ  btf.Type
	bits uint32
}

func f(name string, t btf.Type) member { return member{name, t, 0} }

func bit(name string) member { return member{name, u32, 1} }

func array(t btf.Type, n uint32) *btf.Array { return &btf.Array{Index: u32, Type: t, Nelems: n} }

// sizeAndAlign returns the size and the alignment of a type in bytes, by the ABI of 64-bit machines.
func sizeAndAlign(t btf.Type) (size, align uint32) {
	switch v := t.(type) {
	case *btf.Int:
		return v.Size, v.Size
	case *btf.Enum:
		return v.Size, v.Size
	case *btf.Typedef:
		return sizeAndAlign(v.Type)
	case *btf.Array:
		size, align = sizeAndAlign(v.Type)
		return size * v.Nelems, align
	case *btf.Struct:
		return v.Size, alignOf(v.Members)
	case *btf.Union:
		return v.Size, alignOf(v.Members)
	}
	panic(fmt.Sprintf("type %T", t))
}

func alignOf(members []btf.Member) uint32 {
	largest := uint32(1)
	for i := range members {
		_, align := sizeAndAlign(members[i].Type)
		largest = max(largest, align)
	}
	return largest
}

// structOf lays out a struct. Adjacent bitfields share a word.
func structOf(name string, members ...member) *btf.Struct {
	s := &btf.Struct{Name: name}
	end := uint32(0) // in bits
	for _, m := range members {
		size, align := sizeAndAlign(m.typ)
		at := (end + 8*align - 1) / (8 * align) * 8 * align
		if m.bits > 0 && end/(8*size) == (end+m.bits-1)/(8*size) {
			at = end
		}
		s.Members = append(s.Members, btf.Member{Name: m.name, Type: m.typ, Offset: btf.Bits(at), BitfieldSize: btf.Bits(m.bits)})
		if end = at + 8*size; m.bits > 0 {
			end = at + m.bits
		}
	}
	align := alignOf(s.Members)
	s.Size = (end/8 + min(end%8, 1) + align - 1) / align * align
	return s
}

func unionOf(name string, members ...member) *btf.Union {
	u := &btf.Union{Name: name}
	for _, m := range members {
		size, _ := sizeAndAlign(m.typ)
		u.Size = max(u.Size, size)
		u.Members = append(u.Members, btf.Member{Name: m.name, Type: m.typ})
	}
	align := alignOf(u.Members)
	u.Size = (u.Size + align - 1) / align * align
	return u
}

func enumOf(name string, names ...string) *btf.Enum {
	e := &btf.Enum{Name: name, Size: 4}
	for i, n := range names {
		e.Values = append(e.Values, btf.EnumValue{Name: n, Value: uint64(i)})
	}
	return e
}
