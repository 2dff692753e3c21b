package schema

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/ebpf/btf"
)

// maxIndirect is the maximum number of consecutive typedefs, qualifiers and dimensions of a type,
// as in libbpf.
const maxIndirect = 32

// bigEndian are the typedefs that denote network byte order.
var bigEndian = []string{"__be16", "__be32", "__be64", "be16", "be32", "be64"}

// ownedByKernel are the structs that user space may neither read nor write.
var ownedByKernel = []string{
	"bpf_spin_lock", "bpf_res_spin_lock", "bpf_timer", "bpf_wq",
	"bpf_list_head", "bpf_list_node", "bpf_rb_root", "bpf_rb_node",
	"bpf_refcount", "bpf_dynptr",
}

// shape is a type without its typedefs, qualifiers and dimensions.
type shape struct {
	typ   btf.Type // Int, Enum, Float, Pointer, Struct or Union
	size  int      // of one element, in bytes
	array bool
	dims  int
	count int      // elements of all dimensions, 1 if not an array
	spelt string   // as written in C
	alias string   // the innermost typedef
	be    bool     // a typedef denotes network byte order
	tags  []string // of the typedefs, and of the struct or union
}

// shapeOf resolves typedefs, qualifiers and arrays.
func shapeOf(t btf.Type) (shape, error) {
	sh := shape{count: 1}
	dims := ""
	for range maxIndirect {
		switch v := t.(type) {
		case *btf.Typedef:
			sh.typedef(v)
			t = v.Type
		case *btf.Const:
			t = v.Type
		case *btf.Volatile:
			t = v.Type
		case *btf.Restrict:
			t = v.Type
		case *btf.TypeTag:
			t = v.Type
		case *btf.Array:
			sh.dimension(v.Nelems)
			if sh.spelt == "" {
				dims += fmt.Sprintf("[%d]", v.Nelems)
			}
			t = v.Type
		default:
			return sh.resolve(t, dims)
		}
	}
	return sh, errors.New("has typedefs and dimensions nested too deep")
}

// typedef adds a typedef. The outermost typedef is the spelling of the type.
func (sh *shape) typedef(t *btf.Typedef) {
	if sh.spelt == "" {
		sh.spelt = clean(t.Name, "_")
	}
	sh.alias = t.Name
	sh.be = sh.be || slices.Contains(bigEndian, t.Name)
	sh.tags = append(sh.tags, t.Tags...)
}

// dimension adds an array dimension. It saturates the element count, because larger types are
// refused anyway.
func (sh *shape) dimension(n uint32) {
	sh.array = true
	sh.dims++
	sh.count = int(min(uint64(sh.count)*uint64(n), 2*MaxSize))
}

// resolve completes the shape with the resolved type.
func (sh shape) resolve(t btf.Type, dims string) (shape, error) {
	size, spelt := uint32(0), ""
	switch v := t.(type) {
	case *btf.Int:
		size, spelt = v.Size, clean(v.Name, " _")
	case *btf.Enum:
		size, spelt = v.Size, "enum "+clean(v.Name, "_")
		if v.Size != 1 && v.Size != 2 && v.Size != 4 && v.Size != 8 {
			return sh, fmt.Errorf("enum has %d bytes", v.Size)
		}
	case *btf.Float:
		size, spelt = v.Size, clean(v.Name, " _")
	case *btf.Pointer:
		size, spelt = 8, spellPointer(v)
	case *btf.Struct:
		size, spelt = v.Size, "struct "+clean(v.Name, "_")
		sh.tags = append(sh.tags, v.Tags...)
	case *btf.Union:
		size, spelt = v.Size, "union "+clean(v.Name, "_")
		sh.tags = append(sh.tags, v.Tags...)
	default:
		return sh, fmt.Errorf("has a type without size (%T)", t)
	}
	sh.typ, sh.size = t, int(size)
	if sh.spelt == "" {
		sh.spelt = strings.TrimSpace(spelt)
	}
	sh.spelt += dims
	if _, number := t.(*btf.Int); number && size == 0 {
		return sh, errors.New("integer has no size")
	}
	if int64(size)*int64(sh.count) > MaxSize {
		return sh, fmt.Errorf("%s takes more than %d bytes", sh.spelt, MaxSize)
	}
	return sh, nil
}

// bytes returns the size of all elements in bytes, or 0 for a flexible array.
func (sh *shape) bytes() int { return sh.size * sh.count }

// elements returns the value of [Field.Count].
func (sh *shape) elements() int {
	if sh.array {
		return sh.count
	}
	return 0
}

// structName returns the C name of a struct, union or enum, or place if it is unnamed.
func (sh *shape) structName(place string) string {
	if name := sh.typ.TypeName(); name != "" {
		return cleanName(name)
	}
	if sh.alias != "" {
		return cleanName(sh.alias)
	}
	return place
}

// composite reports whether the type is a union, or a struct that is not a well-known type.
func (sh *shape) composite() bool {
	switch sh.typ.(type) {
	case *btf.Struct:
		return !sh.wellKnownType(&Field{})
	case *btf.Union:
		return true
	}
	return false
}

// wellKnownType sets the kind of f if its struct is a well-known type. It returns false for other
// types.
func (sh *shape) wellKnownType(f *Field) bool {
	s, ok := sh.typ.(*btf.Struct)
	switch {
	case !ok:
		return false
	case s.Name == "in_addr" && s.Size == 4:
		f.Kind, f.Roles = KindUint, RoleBE|RoleIPv4
	case s.Name == "in6_addr" && s.Size == 16:
		f.Kind, f.Roles = KindBytes, RoleIPv6
	case slices.Contains(ownedByKernel, s.Name):
		f.Kind, f.Doc = KindNone, "managed by the kernel"
		f.Timer = s.Name == "bpf_timer" || s.Name == "bpf_wq"
	default:
		return false
	}
	return true
}

// spellPointer returns the C spelling of a pointer with the name of its target.
func spellPointer(p *btf.Pointer) string {
	stars := "*"
	target := p.Target
	for range maxIndirect {
		switch v := target.(type) {
		case *btf.Pointer:
			stars += "*"
			target = v.Target
		case *btf.Const:
			target = v.Type
		case *btf.Volatile:
			target = v.Type
		case *btf.Restrict:
			target = v.Type
		case *btf.TypeTag:
			target = v.Type
		case *btf.Struct:
			return "struct " + clean(v.Name, "_") + " " + stars
		case *btf.Union:
			return "union " + clean(v.Name, "_") + " " + stars
		case *btf.Fwd:
			return v.Kind.String() + " " + clean(v.Name, "_") + " " + stars
		case *btf.Int:
			return clean(v.Name, " _") + " " + stars
		case *btf.Typedef:
			return clean(v.Name, "_") + " " + stars
		default:
			return "void " + stars
		}
	}
	return "void " + stars
}

// cleanName converts any string to a valid C name.
func cleanName(s string) string {
	s = clean(s, "_")
	if s == "" || '0' <= s[0] && s[0] <= '9' {
		s = "_" + s
	}
	return s[:min(len(s), maxName)]
}

// clean replaces all bytes except letters, digits and the bytes of also, and truncates the result
// to the length of a name. Names are used in comments and in generated code.
func clean(s, also string) string {
	b := []byte(s[:min(len(s), maxName)])
	for i, c := range b {
		letter := 'a' <= c|0x20 && c|0x20 <= 'z'
		if !letter && (c < '0' || c > '9') && strings.IndexByte(also, c) < 0 {
			b[i] = '_'
		}
	}
	return string(b)
}
