package peers

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

const (
	// metaVersion is the first byte of a node's metadata. A later version may add fields without
	// changing it, because decodeMeta skips unknown fields.
	metaVersion = 1
	// metaLimit is memberlist's limit for metadata in bytes.
	metaLimit = 512

	metaIncarnation = protowire.Number(1)
	metaServiceAddr = protowire.Number(2)
)

// meta is the metadata that a node sends with every alive message.
type meta struct {
	incarnation uint64
	serviceAddr string
}

// encode returns the wire format: the version byte, then protobuf fields.
func (m meta) encode() []byte {
	b := []byte{metaVersion}
	b = protowire.AppendTag(b, metaIncarnation, protowire.VarintType)
	b = protowire.AppendVarint(b, m.incarnation)
	b = protowire.AppendTag(b, metaServiceAddr, protowire.BytesType)
	return protowire.AppendString(b, m.serviceAddr)
}

// decodeMeta parses and validates the metadata of a peer. Both fields must occur exactly once, the
// incarnation must not be 0, and the address must be dialable.
func decodeMeta(b []byte) (meta, error) {
	if len(b) == 0 || len(b) > metaLimit {
		return meta{}, fmt.Errorf("decode node meta data: %d bytes, want 1 to %d", len(b), metaLimit)
	}
	if b[0] != metaVersion {
		return meta{}, fmt.Errorf("decode node meta data: unsupported version %d, want %d", b[0], metaVersion)
	}
	var m meta
	for b = b[1:]; len(b) > 0; {
		n, err := m.field(b)
		if err != nil {
			return meta{}, fmt.Errorf("decode node meta data: %w", err)
		}
		b = b[n:]
	}
	if m.incarnation == 0 || m.serviceAddr == "" {
		return meta{}, errors.New("decode node meta data: incarnation or service address is missing")
	}
	return m, nil
}

// field parses the field at the start of b and returns its length.
func (m *meta) field(b []byte) (int, error) {
	number, kind, tag := protowire.ConsumeTag(b)
	if tag < 0 {
		return 0, protowire.ParseError(tag)
	}
	b = b[tag:]
	switch {
	case number == metaIncarnation && kind == protowire.VarintType && m.incarnation == 0:
		value, n := protowire.ConsumeVarint(b)
		m.incarnation = value
		return consumed(tag, n)
	case number == metaServiceAddr && kind == protowire.BytesType && m.serviceAddr == "":
		value, n := protowire.ConsumeString(b)
		if n >= 0 {
			if err := checkDialable(value); err != nil {
				return 0, err
			}
		}
		m.serviceAddr = value
		return consumed(tag, n)
	case number == metaIncarnation || number == metaServiceAddr:
		return 0, fmt.Errorf("field %d has the wrong type or is repeated", number)
	}
	return consumed(tag, protowire.ConsumeFieldValue(number, kind, b))
}

// consumed returns the total length of a tag and its value. It converts a negative length into its
// error.
func consumed(tag, value int) (int, error) {
	if value < 0 {
		return 0, protowire.ParseError(value)
	}
	return tag + value, nil
}
