package replicate

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/table"
)

// errMalformed is wrapped by the errors about messages that do not parse.
var errMalformed = errors.New("malformed message")

// batch is a received batch that is decoded in place: its slices point into the message and are
// valid until the message is released. Each inbound stream reuses one batch.
type batch struct {
	// index is the number of the subscription on the stream.
	index uint32
	// origin is the sender of the batch.
	origin table.Owner
	// previousPosition and position are the positions of the stream before and after the batch.
	// They are equal for a batch out of turn.
	previousPosition uint64
	position         uint64
	// caughtUp reports that the sender had nothing left to send after this batch.
	caughtUp bool
	// resent reports that the batch answers a ResendRequest.
	resent bool
	// requested reports that the batch is sent out of turn because of an OwnerRequest.
	requested bool
	// deltas is the number of deltas.
	deltas int

	// data is the encoded Batch. forEachGroup reads the deltas from it.
	data []byte
	// owners are the owners that deltas refer to by index.
	owners []wireOwner
}

// wireOwner is the encoded name and number of an Incarnation. node points into the message.
type wireOwner struct {
	node   []byte
	number uint64
}

// owner returns the owner with a copied name.
func (w wireOwner) owner() table.Owner {
	return table.Owner{Node: string(w.node), Incarnation: w.number}
}

// wireDelta is a received delta. key and value point into the message. owner is an index of batch.owners.
type wireDelta struct {
	key, value []byte
	version    uint64
	owner      uint32
	operation  mapsyncv1.Operation
}

// batchPayload returns the encoded Batch of an encoded SubscribeResponse that contains only a
// Batch. The stock decoder handles all other messages.
func batchPayload(response []byte) (data []byte, ok bool) {
	if len(response) == 0 || response[0] != tagResponseBatch {
		return nil, false
	}
	data, n := protowire.ConsumeBytes(response[1:])
	return data, n == len(response)-1
}

// parse reads all fields except the deltas, which it counts. It keeps data. The sender writes the
// deltas last, but protobuf does not guarantee an order, so a second pass reads them.
func (b *batch) parse(data []byte) error {
	// The slice of owners is reused.
	*b = batch{data: data, owners: b.owners[:0]}
	var origin wireOwner
	for rest := data; len(rest) > 0; {
		n := 0
		var err error
		// All tags are one byte. The default case checks other tags.
		switch rest[0] {
		case tagBatchDelta:
			_, n = consumeBytes(rest)
			b.deltas++
		case tagBatchOwner:
			var w wireOwner
			if w, n, err = consumeOwner(rest); err == nil && n > 0 {
				b.owners = append(b.owners, w)
			}
		case tagBatchOrigin:
			origin, n, err = consumeOwner(rest)
		case tagBatchMap:
			n = b.consumeIndex(rest)
		case tagBatchPrevious:
			b.previousPosition, n = consumeVarint(rest)
		case tagBatchPosition:
			b.position, n = consumeVarint(rest)
		case tagBatchCaughtUp:
			var v uint64
			v, n = consumeVarint(rest)
			b.caughtUp = v != 0
		case tagBatchResent:
			var v uint64
			v, n = consumeVarint(rest)
			b.resent = v != 0
		case tagBatchRequested:
			var v uint64
			v, n = consumeVarint(rest)
			b.requested = v != 0
		default:
			n = consumeUnknown(rest)
		}
		if err != nil {
			return err
		}
		if n <= 0 {
			return fmt.Errorf("decode batch at byte %d of %d: %w", len(data)-len(rest), len(data), errMalformed)
		}
		rest = rest[n:]
	}
	// A message without an origin has the zero owner, which is not the name of any peer.
	b.origin = origin.owner()
	return nil
}

// consumeIndex reads the number of the subscription and returns the size of the field.
func (b *batch) consumeIndex(rest []byte) int {
	v, n := consumeVarint(rest)
	b.index = uint32(v)
	return n
}

// forEachGroup calls fn for the deltas in order, up to len(buf) at a time, until fn returns an
// error. fn may change the deltas in buf.
func (b *batch) forEachGroup(buf []wireDelta, fn func([]wireDelta) error) error {
	n := 0
	for rest := b.data; len(rest) > 0; {
		if rest[0] != tagBatchDelta {
			// parse has checked that the field is complete.
			rest = rest[consumeUnknown(rest):]
			continue
		}
		data, size := consumeBytes(rest)
		if size <= 0 || !buf[n].parse(data) {
			return fmt.Errorf("decode delta at byte %d of %d: %w", len(b.data)-len(rest), len(b.data), errMalformed)
		}
		rest = rest[size:]
		if n++; n == len(buf) {
			if err := fn(buf); err != nil {
				return err
			}
			n = 0
		}
	}
	return fn(buf[:n])
}

// parse reads a delta. It returns false if the delta is malformed. The slices of d point into b.
func (d *wireDelta) parse(b []byte) bool {
	*d = wireDelta{}
	for len(b) > 0 {
		n := 0
		switch b[0] {
		case tagKey:
			d.key, n = consumeBytes(b)
		case tagValue:
			d.value, n = consumeBytes(b)
		case tagVersion:
			if len(b) >= 9 {
				d.version, n = binary.LittleEndian.Uint64(b[1:]), 9
			}
		case tagOwner:
			var v uint64
			v, n = consumeVarint(b)
			d.owner = uint32(v)
		case tagOperation:
			var v uint64
			v, n = consumeVarint(b)
			d.operation = mapsyncv1.Operation(int32(v))
		default:
			n = consumeUnknown(b)
		}
		if n <= 0 {
			return false
		}
		b = b[n:]
	}
	return true
}

// consumeBytes returns the content of a length-delimited field with a one-byte tag, and the size of
// the field including the tag; 0 if the field is truncated.
func consumeBytes(b []byte) ([]byte, int) {
	if len(b) > 1 && b[1] < 0x80 {
		// The length takes one byte: the usual case.
		if end := 2 + int(b[1]); end <= len(b) {
			return b[2:end], end
		}
		return nil, 0
	}
	// The length takes two bytes.
	if len(b) > 2 && b[2] < 0x80 {
		if end := 3 + (int(b[1]&0x7f) | int(b[2])<<7); end <= len(b) {
			return b[3:end], end
		}
		return nil, 0
	}
	// Longer lengths, and lengths that are not in their shortest encoding.
	v, n := protowire.ConsumeBytes(b[1:])
	if n < 0 {
		return nil, 0
	}
	return v, 1 + n
}

// consumeVarint returns the value of a varint field with a one-byte tag, and the size of the field;
// 0 if it is truncated.
func consumeVarint(b []byte) (uint64, int) {
	if len(b) > 1 && b[1] < 0x80 {
		return uint64(b[1]), 2
	}
	v, n := protowire.ConsumeVarint(b[1:])
	if n < 0 {
		return 0, 0
	}
	return v, 1 + n
}

// consumeUnknown returns the size of an unknown field, which protobuf requires decoders to skip. It
// returns 0 for a tag that is not in its shortest encoding. Encoders do not write such tags, and a
// tag of this package could be hidden in one.
func consumeUnknown(b []byte) int {
	num, typ, n := protowire.ConsumeTag(b)
	// The tag must be valid and in its shortest encoding.
	if n < 0 || num > protowire.MaxValidNumber || n != protowire.SizeTag(num) {
		return 0
	}
	m := protowire.ConsumeFieldValue(num, typ, b[n:])
	if m < 0 || n > math.MaxInt32-m {
		return 0
	}
	return n + m
}

// consumeOwner returns an Incarnation and the size of the field; 0 if it is truncated. The error is
// that of checkName.
func consumeOwner(b []byte) (w wireOwner, n int, err error) {
	data, n := consumeBytes(b)
	if n <= 0 {
		return w, 0, nil
	}
	for len(data) > 0 {
		m := 0
		switch {
		case data[0] == tagNode:
			// protobuf uses the last of several names, but requires each of them to be valid.
			if w.node, m = consumeBytes(data); m > 0 {
				if err := checkName(w.node); err != nil {
					return w, 0, err
				}
			}
		case data[0] == tagNumber && len(data) >= 9:
			w.number, m = binary.LittleEndian.Uint64(data[1:]), 9
		case data[0] != tagNumber:
			// A truncated number leaves m at 0, so it is an error below.
			m = consumeUnknown(data)
		}
		if m <= 0 {
			return w, 0, nil
		}
		data = data[m:]
	}
	return w, n, checkName(w.node)
}

// checkName returns an error that wraps errMalformed if a node name is empty, longer than
// maxNodeName bytes, or not UTF-8.
func checkName[S string | []byte](name S) error {
	if len(name) == 0 || len(name) > maxNodeName || !utf8.ValidString(string(name)) {
		return fmt.Errorf("read node name of %d bytes: %w", len(name), errMalformed)
	}
	return nil
}
