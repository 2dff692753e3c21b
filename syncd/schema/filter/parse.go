package filter

import (
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"mapsync/syncd/schema"
)

// parseOperand parses the value with which a field is compared. ordered is true if < > <= >= apply
// to the field. The error lists the accepted values.
func parseOperand(f *schema.Field, text string) (o operand, ordered bool, err error) {
	switch f.AddressSize() {
	case 4, 16:
		o, err = parseIP(f, text)
		return o, false, err
	case 6:
		o, err = parseMAC(text)
		return o, false, err
	}
	switch f.Kind {
	case schema.KindBool:
		b, err := strconv.ParseBool(text)
		if err != nil {
			err = errors.New("true or false")
		}
		return boolOperand(b), false, err
	case schema.KindEnum:
		o, err = parseEnum(f, text)
		return o, false, err
	case schema.KindFloat:
		v, err := strconv.ParseFloat(text, 64)
		if err != nil {
			err = errors.New("a number")
		}
		return floatOperand(v), true, err
	case schema.KindBytes:
		o, err = parseBytes(f, text)
		return o, false, err
	case schema.KindTime:
		o, err = parseTime(text)
		return o, true, err
	case schema.KindIfname:
		return parseIfname(text), false, nil
	case schema.KindReference:
		return nameOperand(text), false, nil
	}
	o, err = parseNumber(f, text)
	return o, true, err
}

// parseIP parses an address or a prefix. A field of 16 bytes may contain an IPv4 address in its
// first 4 bytes, or in its last 4 bytes as an IPv4-mapped IPv6 address.
func parseIP(f *schema.Field, text string) (operand, error) {
	size := f.AddressSize()
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		var a netip.Addr
		if a, err = netip.ParseAddr(text); err == nil {
			prefix, err = a.Prefix(a.BitLen())
		}
	}
	if err != nil || size == 4 && !prefix.Addr().Is4() {
		if size == 4 {
			return nil, errors.New("an IPv4 address or prefix, as 10.0.0.0/8")
		}
		return nil, errors.New("an address or prefix, as 10.0.0.0/8 or fd00::/64")
	}
	value, mask := prefix.Masked().Addr().AsSlice(), net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen())
	if len(value) == size {
		return maskedOperand{{value, mask}}, nil
	}
	exact := slices.Repeat([]byte{0xff}, 12)
	mapped := []byte{10: 0xff, 11: 0xff}
	return maskedOperand{
		{slices.Concat(value, make([]byte, 12)), slices.Concat(mask, exact)},
		{slices.Concat(mapped, value), slices.Concat(exact, mask)},
	}, nil
}

func parseMAC(text string) (operand, error) {
	mac, err := net.ParseMAC(text)
	if err != nil || len(mac) != 6 {
		return nil, errors.New("a MAC address, as 02:00:00:00:00:01")
	}
	return maskedOperand{{mac, slices.Repeat([]byte{0xff}, 6)}}, nil
}

func parseEnum(f *schema.Field, text string) (operand, error) {
	for _, v := range f.Enum.Values {
		if v.Name == text {
			return unsignedOperand(v.Value), nil
		}
	}
	o, err := parseNumber(f, text)
	if err != nil {
		names := make([]string, 0, len(f.Enum.Values))
		for _, v := range f.Enum.Values {
			names = append(names, v.Name)
		}
		return nil, fmt.Errorf("one of %s, or %w", strings.Join(names, ", "), err)
	}
	return o, nil
}

// parseNumber parses a number that the field can contain. A condition with another number is an
// error.
func parseNumber(f *schema.Field, text string) (operand, error) {
	bits := f.Size * 8
	if f.BitSize > 0 {
		bits = f.BitSize
	}
	if f.IsSigned() {
		limit := int64(math.MaxInt64 >> (64 - bits))
		n, err := strconv.ParseInt(text, 0, 64)
		if err != nil || n > limit || n < -limit-1 {
			return nil, fmt.Errorf("a number from %d to %d", -limit-1, limit)
		}
		return signedOperand(n), nil
	}
	limit := uint64(math.MaxUint64 >> (64 - bits))
	n, err := strconv.ParseUint(text, 0, 64)
	if err != nil || n > limit {
		return nil, fmt.Errorf("a number from 0 to %d", limit)
	}
	return unsignedOperand(n), nil
}

func parseBytes(f *schema.Field, text string) (operand, error) {
	size, _ := f.Elements()
	digits, isHex := strings.CutPrefix(text, "0x")
	value := []byte(text)
	if isHex || !f.IsText() {
		var err error
		if value, err = hex.DecodeString(digits); err != nil {
			return nil, fmt.Errorf("up to %d bytes in hex", size)
		}
	}
	if len(value) > size {
		return nil, fmt.Errorf("at most %d bytes", size)
	}
	return maskedOperand{{append(value, make([]byte, size-len(value))...), slices.Repeat([]byte{0xff}, size)}}, nil
}

func parseTime(text string) (operand, error) {
	if text == "0" {
		return unsignedOperand(0), nil
	}
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil || at.Year() < 1700 || at.Year() > 2200 { // the range of int64 nanoseconds
		return nil, errors.New("a time, as 2026-01-31T15:04:05Z, or 0 for none")
	}
	return timeOperand(at.UnixNano()), nil
}

func parseIfname(text string) operand {
	if index, err := strconv.ParseUint(text, 10, 32); err == nil {
		return unsignedOperand(index)
	}
	return nameOperand(text)
}
