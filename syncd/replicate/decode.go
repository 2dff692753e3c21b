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

// errMalformed is wrapped by the errors of messages that do not parse.
var errMalformed = errors.New("malformed message")

// batch is a received batch, decoded in place: its slices are borrowed from the
// message. It is kept and used again.
type batch struct {
	index    uint32
	origin   table.Owner
	previous uint64
	position uint64
	caughtUp bool
	retold   bool
	request  bool // out of turn because of an OwnerRequest
	deltas   int

	data   []byte // the whole Batch, for groups
	owners []wireOwner
}

// wireOwner is an encoded Incarnation.
type wireOwner struct {
	node   []byte
	number uint64
}

func (w wireOwner) owner() table.Owner {
	return table.Owner{Node: string(w.node), Incarnation: w.number}
}

// wireDelta is a received delta, borrowed from the message.
type wireDelta struct {
	key, value []byte
	version    uint64
	owner      uint32
	operation  mapsyncv1.Operation
}

// batchOf returns the encoded Batch of an encoded SubscribeResponse that holds
// nothing else. Any other message is for the stock decoder.
func batchOf(response []byte) (data []byte, ok bool) {
	if len(response) == 0 || response[0] != tagResponseBatch {
		return nil, false
	}
	data, n := protowire.ConsumeBytes(response[1:])
	return data, n == len(response)-1
}

// parse reads everything but the deltas, which it counts. The deltas come last,
// but that is not for protobuf to promise, so they take a pass of their own.
func (b *batch) parse(data []byte) error {
	*b = batch{data: data, owners: b.owners[:0]}
	var origin wireOwner
	for rest := data; len(rest) > 0; {
		n := 0
		var err error
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
			b.previous, n = consumeVarint(rest)
		case tagBatchPosition:
			b.position, n = consumeVarint(rest)
		case tagBatchCaughtUp:
			var v uint64
			v, n = consumeVarint(rest)
			b.caughtUp = v != 0
		case tagBatchRetold:
			var v uint64
			v, n = consumeVarint(rest)
			b.retold = v != 0
		case tagBatchRequest:
			var v uint64
			v, n = consumeVarint(rest)
			b.request = v != 0
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
	b.origin = origin.owner()
	return nil
}

func (b *batch) consumeIndex(rest []byte) int {
	v, n := consumeVarint(rest)
	b.index = uint32(v)
	return n
}

// groups calls fn for the deltas, in order and as many at a time as buf holds, until
// it returns an error. The deltas are the caller's scratch space.
func (b *batch) groups(buf []wireDelta, fn func([]wireDelta) error) error {
	n := 0
	for rest := b.data; len(rest) > 0; {
		if rest[0] != tagBatchDelta {
			// parse has seen that it is whole.
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

// consumeBytes returns the content of a length-delimited field with a one-byte
// tag, and the size of the field; 0 if it is cut short.
func consumeBytes(b []byte) ([]byte, int) {
	if len(b) > 1 && b[1] < 0x80 {
		if end := 2 + int(b[1]); end <= len(b) {
			return b[2:end], end
		}
		return nil, 0
	}
	if len(b) > 2 && b[2] < 0x80 {
		if end := 3 + (int(b[1]&0x7f) | int(b[2])<<7); end <= len(b) {
			return b[3:end], end
		}
		return nil, 0
	}
	v, n := protowire.ConsumeBytes(b[1:])
	if n < 0 {
		return nil, 0
	}
	return v, 1 + n
}

// consumeVarint is consumeBytes for a number.
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

// consumeUnknown returns the size of a field that is none of ours, which
// protobuf says is to be passed over. A tag that is longer than it has to be is
// refused: no encoder makes one, and one of our fields could hide behind it.
func consumeUnknown(b []byte) int {
	num, typ, n := protowire.ConsumeTag(b)
	if n < 0 || num > protowire.MaxValidNumber || n != protowire.SizeTag(num) {
		return 0
	}
	m := protowire.ConsumeFieldValue(num, typ, b[n:])
	if m < 0 || n > math.MaxInt32-m {
		return 0
	}
	return n + m
}

// consumeOwner returns an Incarnation.
func consumeOwner(b []byte) (w wireOwner, n int, err error) {
	data, n := consumeBytes(b)
	if n <= 0 {
		return w, 0, nil
	}
	for len(data) > 0 {
		m := 0
		switch {
		case data[0] == tagNode:
			// Each, not only the last, which counts: so says protobuf of strings.
			if w.node, m = consumeBytes(data); m > 0 {
				if err := checkName(w.node); err != nil {
					return w, 0, err
				}
			}
		case data[0] == tagNumber && len(data) >= 9:
			w.number, m = binary.LittleEndian.Uint64(data[1:]), 9
		case data[0] != tagNumber:
			m = consumeUnknown(data)
		}
		if m <= 0 {
			return w, 0, nil
		}
		data = data[m:]
	}
	return w, n, checkName(w.node)
}

// checkName returns an error if a node name is empty, too long or not UTF-8.
func checkName[S string | []byte](name S) error {
	if len(name) == 0 || len(name) > maxNodeName || !utf8.ValidString(string(name)) {
		return fmt.Errorf("read node name of %d bytes: %w", len(name), errMalformed)
	}
	return nil
}
