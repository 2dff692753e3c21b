package schema

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// tagPrefix is the prefix of mapsync's decl tags.
const tagPrefix = "mapsync:"

// Field numbers that protobuf reserves.
const (
	reservedFirst = 19000
	reservedLast  = 19999
)

// Sets of roles, for the check of their combinations.
const (
	// keyRoles are the roles allowed in keys.
	keyRoles = RoleBE | RoleIPv4 | RoleIPv6 | RoleIP | RoleMAC | RolePort | RoleIfindex
	// meanings exclude each other.
	meanings = RoleTime | RoleIfindex | RoleSum | RoleIPv4 | RoleIPv6 | RoleIP | RoleMAC | RolePort
	// hostOrder excludes network byte order.
	hostOrder = RoleTime | RoleIfindex | RoleSum
)

// Setting sets the roles of one field, in place of the roles in its tags.
type Setting struct {
	// Map is the name of the map.
	Map string
	// Field is the path of the field in the value: names joined by dots, with an optional prefix
	// "value.". A field of the key has the prefix "key.". In a map without types it is a position:
	// @OFFSET:SIZE, in bytes.
	Field string
	// Roles are all roles of the field, in addition to those of its type.
	Roles Role
	// Clear removes everything that the tags set, including the number.
	Clear bool
	// Number pins the field's number. 0 leaves it unchanged.
	Number int
	// Default is the initial content of a local field: a number, or hexadecimal bytes for fields
	// that are not numbers. "" stands for zeros.
	Default string
	// Name is the name of a field that has a position in place of a name; "" stands for at_OFFSET.
	Name string
	// Case is a member of a union, without roles: see [Case].
	Case Case
	// Family is the field that decides about the role ip: see [Field.Family].
	Family string
	// VolatileBits are the bits of a number with the role volatile, or 0 for all.
	VolatileBits uint64
	// Reference is the reference of a field that contains an id of another map: see [Field.Reference].
	Reference string
}

// ParseSetting parses MAP:PATH=ROLE[,ROLE...]. Roles are ktime, boottime, jiffies,
// jiffies/256, seconds, ifindex, volatile, local, sum, be, ipv4, ipv6, mac, port and ip=FIELD. volatile=BITS concerns some bits of a number. The
// list may also contain number=N, default=VALUE and name=NAME. The value none stands alone, and so does
// as:MEMBER [when CONDITION] for a union. ref:MAP[FIELD,...] is an id of another map, and may be followed by number=N and name=NAME. [Schema.Apply] checks whether
// the roles fit the field.
func ParseSetting(s string) (Setting, error) {
	place, roles, ok := strings.Cut(s, "=")
	name, field, found := cutMap(place)
	if !ok || !found {
		return Setting{}, fmt.Errorf("read field setting %q: want MAP:PATH=ROLE[,ROLE...]", s)
	}
	set := Setting{Map: name, Field: field}
	if strings.HasPrefix(roles, "as:") {
		var err error
		if set.Case, err = parseCase(roles); err != nil {
			return Setting{}, fmt.Errorf("read field setting %q: %w", s, err)
		}
		return set, nil
	}
	if strings.HasPrefix(roles, referencePrefix) {
		if err := set.parseReference(strings.TrimPrefix(roles, referencePrefix)); err != nil {
			return Setting{}, fmt.Errorf("read field setting %q: %w", s, err)
		}
		return set, nil
	}
	if roles == "none" {
		set.Clear = true
		return set, nil
	}
	if err := set.parse(roles); err != nil {
		return Setting{}, fmt.Errorf("read field setting %q: %w", s, err)
	}
	return set, nil
}

// parseTags parses the decl tags of a member and of its type. It ignores tags without mapsync's
// prefix.
func parseTags(ofType, ofMember []string) (set Setting, err error) {
	for _, tag := range ofType {
		if roles, ours := strings.CutPrefix(tag, tagPrefix); ours && err == nil {
			err = set.parse(roles)
		}
	}
	if err == nil && set.Number != 0 {
		err = errors.New("number=N is for a member, not for a type")
	}
	for _, tag := range ofMember {
		if roles, ours := strings.CutPrefix(tag, tagPrefix); ours && err == nil {
			err = set.parse(roles)
		}
	}
	if err != nil {
		return set, fmt.Errorf("has a bad tag: %w", err)
	}
	return set, nil
}

// parse adds a list of roles to the setting.
func (set *Setting) parse(list string) error {
	for word := range strings.SplitSeq(list, ",") {
		var more Setting
		name, value, hasValue := strings.Cut(word, "=")
		switch {
		case hasValue && name == "number":
			n, err := strconv.Atoi(value)
			if err != nil || n < 1 || n > MaxNumber || reservedFirst <= n && n <= reservedLast {
				return fmt.Errorf("%.80q is not a valid protobuf field number", word)
			}
			more.Number = n
		case hasValue && name == "default" && value != "":
			more.Default = value
		case hasValue && name == "name" && isIdentifier(value):
			more.Name = value
		case hasValue && name == "volatile":
			bits, err := strconv.ParseUint(value, 0, 64)
			if err != nil || bits == 0 {
				return fmt.Errorf("%.80q: write the volatile bits as a number", word)
			}
			more.Roles, more.VolatileBits = RoleVolatile, bits
		case hasValue && name == "ip" && value != "":
			more.Roles, more.Family = RoleIP, value
		default:
			i := slices.IndexFunc(roleTable, func(r roleInfo) bool { return r.name == word })
			if i < 0 || roleTable[i].role == RoleIP {
				return fmt.Errorf("unknown role %.80q", word)
			}
			more.Roles = roleTable[i].role
		}
		if err := set.add(&more); err != nil {
			return err
		}
	}
	return nil
}

// add merges more into the setting.
func (set *Setting) add(more *Setting) error {
	if set.Number != 0 && more.Number != 0 && set.Number != more.Number {
		return fmt.Errorf("number=%d and number=%d contradict each other", set.Number, more.Number)
	}
	if set.Default != "" && more.Default != "" && set.Default != more.Default {
		return fmt.Errorf("default=%.40s and default=%.40s contradict each other", set.Default, more.Default)
	}
	if set.Name != "" && more.Name != "" || set.Family != "" && more.Family != "" {
		return errors.New("name or ip is given twice")
	}
	set.Roles |= more.Roles
	set.Number = max(set.Number, more.Number)
	set.Default = max(set.Default, more.Default)
	set.Name, set.Family = set.Name+more.Name, set.Family+more.Family
	set.VolatileBits |= more.VolatileBits
	return nil
}

// roleInfo describes one role.
type roleInfo struct {
	role  Role
	name  string
	needs string              // the type that it fits, for display
	apply func(f *Field) bool // applies the role to f, false if it does not fit
}

var roleTable = []roleInfo{
	{RoleKtime, "ktime", "an 8-byte integer", func(f *Field) bool { return f.become(KindTime, 8) }},
	{RoleBoottime, "boottime", "an 8-byte integer", func(f *Field) bool { return f.become(KindTime, 8) }},
	{RoleJiffies, "jiffies", "a 4 or 8-byte integer", func(f *Field) bool { return f.become(KindTime, 4, 8) }},
	{RoleJiffies256, "jiffies/256", "a 4 or 8-byte integer", func(f *Field) bool { return f.become(KindTime, 4, 8) }},
	{RoleSeconds, "seconds", "a 4 or 8-byte integer", func(f *Field) bool { return f.become(KindTime, 4, 8) }},
	{RoleIfindex, "ifindex", "a 2, 4 or 8-byte integer", func(f *Field) bool { return f.become(KindIfname, 2, 4, 8) }},
	{RoleVolatile, "volatile", "a field that is sent", func(f *Field) bool { return f.Kind != KindNone }},
	{RoleLocal, "local", "a field", func(*Field) bool { return true }},
	{RoleSum, "sum", "an integer", func(f *Field) bool { return f.integer(1, 2, 4, 8) }},
	{RoleBE, "be", "an unsigned 2, 4 or 8-byte integer", func(f *Field) bool { return f.Kind == KindUint && f.integer(2, 4, 8) }},
	{RoleIPv4, "ipv4", "4 bytes", (*Field).becomeIPv4},
	{RoleIPv6, "ipv6", "16 bytes", func(f *Field) bool { return f.becomeBytes(16) }},
	{RoleIP, "ip", "16 bytes", func(f *Field) bool { return f.becomeBytes(16) }},
	{RoleMAC, "mac", "6 bytes", func(f *Field) bool { return f.becomeBytes(6) }},
	{RolePort, "port", "an unsigned 2-byte integer", func(f *Field) bool { return f.Kind == KindUint && f.integer(2) }},
}

// integer reports whether f is an integer, or an array of integers, of one of the sizes in bytes.
func (f *Field) integer(sizes ...int) bool {
	return (f.Kind == KindUint || f.Kind == KindSint) && f.BitSize == 0 && slices.Contains(sizes, f.Size)
}

func (f *Field) become(kind Kind, sizes ...int) bool {
	if !f.integer(sizes...) {
		return false
	}
	f.Signed = kind == KindTime && f.Kind == KindSint
	f.Kind = kind
	return true
}

func (f *Field) becomeIPv4() bool {
	if f.Kind == KindUint && f.integer(4) {
		f.Roles |= RoleBE
		return true
	}
	return f.becomeBytes(4)
}

// becomeBytes converts an array of integers or a struct with size bytes in total to bytes, as C code
// often declares addresses.
func (f *Field) becomeBytes(size int) bool {
	switch {
	case f.Kind == KindBytes:
		return f.Size == size
	case f.Kind == KindMessage:
		if f.Size != size || hasKindNone(f.Message) {
			return false
		}
		f.Message = nil
	case f.Count == 0 || f.Bytes() != size || !f.integer(2, 4, 8):
		return false
	default:
		f.Count = 0
	}
	f.Kind, f.Size = KindBytes, size
	f.Roles &^= RoleBE
	return true
}

// declared is the definition of a field by its type alone, and the setting of its tags.
type declared struct {
	kind        Kind
	size, count int
	roles       Role
	message     *Message
	number      int
	tags        Setting
	family      string // of the current setting
}

// save stores the definition of f before roles are applied.
func (d *declared) save(f *Field) {
	d.kind, d.size, d.count, d.roles, d.message = f.Kind, f.Size, f.Count, f.Roles, f.Message
}

// applySetting sets f to the definition of its type with a setting applied. Its errors continue a
// sentence that begins with the field's name.
func (f *Field) applySetting(set *Setting, key bool) error {
	d := f.decl
	f.Kind, f.Size, f.Count, f.Signed, f.Message = d.kind, d.size, d.count, false, d.message
	f.Roles, f.Number, f.Default, f.Family, f.Reference = d.roles|set.Roles, d.number, nil, nil, set.Reference
	f.Silenced, d.family = set.Clear, set.Family
	if set.Number != 0 {
		f.Number = set.Number
	}
	if wrong := set.Roles &^ keyRoles; key && wrong != 0 {
		return fmt.Errorf("of type %s cannot have role %s in a key", f.Type, strings.Join(wrong.Names(), ","))
	}
	if both := f.Roles & meanings; both&(both-1) != 0 {
		return fmt.Errorf("of type %s cannot have roles %s at once", f.Type, strings.Join(both.Names(), ","))
	}
	if both := f.Roles & (hostOrder | RoleBE); both&RoleBE != 0 && both != RoleBE {
		return fmt.Errorf("of type %s cannot have roles %s at once", f.Type, strings.Join(both.Names(), ","))
	}
	for _, r := range roleTable {
		if set.Roles&r.role != 0 && !r.apply(f) {
			return fmt.Errorf("of type %s cannot have role %s: it needs %s", f.Type, r.name, r.needs)
		}
	}
	if f.VolatileBits = set.VolatileBits; f.VolatileBits != 0 && (f.Kind != KindUint || f.BitSize > 0 || f.Swapped() || f.VolatileBits>>(8*f.Size-1)>>1 != 0) {
		return fmt.Errorf("of type %s cannot have volatile=%#x: it needs an unsigned integer in host order with these bits", f.Type, f.VolatileBits)
	}
	if f.Reference != "" && !f.become(KindReference, 1, 2, 4, 8) {
		return fmt.Errorf("of type %s cannot be a reference: it needs an integer", f.Type)
	}
	if f.Kind == KindReference && f.Count > 0 {
		return fmt.Errorf("of type %s cannot be a reference: it needs a single integer", f.Type)
	}
	if set.Default == "" {
		return nil
	}
	return f.setDefault(set.Default)
}

// Names returns the names of the roles, as in decl tags and settings.
func (r Role) Names() []string {
	var names []string
	for i := range roleTable {
		if r&roleTable[i].role != 0 {
			names = append(names, roleTable[i].name)
		}
	}
	return names
}

// SumFields returns the names of the unsigned fields of the value with the role sum, in the order of their declaration. A name in
// a struct has the form outer.inner. Elements of arrays are not listed.
func (s *Schema) SumFields() []string {
	value := s.Value
	if s.CPUs > 0 {
		value = value.Fields[0].Message
	}
	return value.sumFields("")
}

func (m *Message) sumFields(prefix string) (names []string) {
	for i := range m.Fields {
		switch f := &m.Fields[i]; {
		case f.Count > 0:
		case f.Kind == KindMessage:
			names = append(names, f.Message.sumFields(prefix+f.Name+".")...)
		case f.Roles&RoleSum != 0 && f.Kind == KindUint:
			names = append(names, prefix+f.Name)
		}
	}
	return names
}
