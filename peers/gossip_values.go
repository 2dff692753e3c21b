package peers

import (
	"encoding/binary"
	"fmt"
	"io"
)

// memberlist decodes each message as one msgpack map of texts, bytes, numbers, booleans and nil. Its decoder allocates the
// announced length of other values before their bytes have arrived, up to 4 GiB, and calls itself for nested ones. valueReader
// refuses them.

// errValue is the error of a message that is not such a map.
var errValue = fmt.Errorf("value of an unsupported type: %w", errEncoding)

// valueReader reads msgpack values without storing them.
type valueReader struct {
	from io.Reader
	// bytes is scratch space of number.
	bytes [8]byte
}

// number reads a big-endian number of 1, 2, 4 or 8 bytes.
func (v *valueReader) number(size int) (uint64, error) {
	b := v.bytes[:]
	clear(b)
	if _, err := io.ReadFull(v.from, b[len(b)-size:]); err != nil {
		return 0, err
	}
	return binary.BigEndian.Uint64(b), nil
}

// skipMap reads a map of texts, bytes, numbers, booleans and nil. Its errors wrap errEncoding or are those of the reader.
func (v *valueReader) skipMap() error {
	kind, err := v.number(1)
	if err != nil {
		return err
	}
	var pairs uint64
	switch {
	case kind&0xf0 == 0x80:
		pairs = kind & 0x0f
	case kind == 0xde || kind == 0xdf:
		if pairs, err = v.number(2 << (kind - 0xde)); err != nil {
			return err
		}
	default:
		return errValue
	}
	for range 2 * pairs {
		if err := v.skipScalar(); err != nil {
			return err
		}
	}
	return nil
}

// skipScalar reads a text, bytes, a number, a boolean or nil.
func (v *valueReader) skipScalar() error {
	kind, err := v.number(1)
	if err != nil {
		return err
	}
	size := uint64(0)
	switch {
	case kind < 0x80, kind >= 0xe0, kind == 0xc0, kind == 0xc2, kind == 0xc3: // small number, nil, boolean
	case kind&0xe0 == 0xa0: // short text
		size = kind & 0x1f
	case kind >= 0xc4 && kind <= 0xc6: // bytes
		size, err = v.number(1 << (kind - 0xc4))
	case kind >= 0xd9 && kind <= 0xdb: // text
		size, err = v.number(1 << (kind - 0xd9))
	case kind >= 0xcc && kind <= 0xd3: // number
		size = 1 << (kind & 3)
	default:
		return errValue
	}
	if err == nil {
		_, err = io.CopyN(io.Discard, v.from, int64(size))
	}
	return err
}
