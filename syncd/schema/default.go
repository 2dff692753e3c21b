package schema

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// setDefault sets the value that a local field has in an entry created by a peer. The default of a
// bitfield has the bits at their position in the field, with zeros around them.
func (f *Field) setDefault(text string) error {
	if f.Roles&RoleLocal == 0 {
		return errors.New("has a default but is not local")
	}
	if f.Kind == KindNone {
		return fmt.Errorf("of type %s cannot have a default", f.Type)
	}
	b, err := f.parseDefault(text)
	if err != nil {
		return fmt.Errorf("of type %s cannot have default %.80q: %w", f.Type, text, err)
	}
	f.Default = b
	return nil
}

func (f *Field) parseDefault(text string) ([]byte, error) {
	kind := f.decl.kind
	if f.Count == 0 && (kind == KindUint || kind == KindSint || kind == KindBool || kind == KindEnum) {
		return f.parseNumber(text)
	}
	b, err := hex.DecodeString(strings.TrimPrefix(text, "0x"))
	if err != nil {
		return nil, errors.New("it is not hexadecimal")
	}
	if len(b) != f.Bytes() {
		return nil, fmt.Errorf("it has %d bytes, not %d", len(b), f.Bytes())
	}
	return b, nil
}

// parseNumber returns the bytes of a default of an integer, a boolean or an enum.
func (f *Field) parseNumber(text string) ([]byte, error) {
	digits, hexadecimal := strings.CutPrefix(text, "0x")
	kind := f.decl.kind
	width := f.Size * 8
	if f.BitSize > 0 {
		width = f.BitSize
	}
	if kind == KindBool {
		width = 1
	}
	base := 10
	if hexadecimal {
		base = 16
	}
	var n uint64
	var err error
	if strings.HasPrefix(text, "-") && (kind == KindSint || kind == KindEnum && f.Enum.Signed) {
		var negative int64
		negative, err = strconv.ParseInt(text, 10, width)
		n = uint64(negative)
	} else {
		n, err = strconv.ParseUint(digits, base, width)
		if kind == KindSint && !hexadecimal && err == nil && n>>(width-1) != 0 {
			err = strconv.ErrRange
		}
	}
	if err != nil {
		return nil, fmt.Errorf("not a number of %d bits", width)
	}
	return f.place(n, width), nil
}

// place returns the bytes of the field that contain n.
func (f *Field) place(n uint64, width int) []byte {
	n = n << (64 - width) >> (64 - width)
	var b [9]byte
	if f.Roles&RoleBE != 0 {
		binary.BigEndian.PutUint64(b[:], n<<(64-width))
	} else {
		binary.LittleEndian.PutUint64(b[:], n<<f.BitOffset)
		if f.BitOffset > 0 {
			b[8] = byte(n >> (64 - f.BitOffset))
		}
	}
	return b[:f.Bytes():f.Bytes()]
}
