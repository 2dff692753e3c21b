package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"google.golang.org/protobuf/encoding/protowire"

	"mapsync/printable"
	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/table"
)

// MaxName is the maximum size of the name of a node or map in bytes. The limit bounds what a peer can
// make this node store for each owner.
const MaxName = 255

// ErrMalformed is wrapped by the errors about messages that do not parse or are invalid.
var ErrMalformed = errors.New("malformed message")

// Batch is a received batch that is decoded in place: its slices point into the message and are
// valid until the message is released. A Batch is reused for all messages of a stream. The zero value
// is ready for Parse. A Batch belongs to one goroutine.
//
// Parse and ForEachGroup decode in two passes: the first checks the frame of the message and finds the
// owners, the second decodes the deltas. Neither allocates per delta.
type Batch struct {
	// Index is the number of the subscription on the stream.
	Index uint32
	// Origin is the sender of the batch; the zero value if the message has none. It owns its name.
	Origin table.Owner
	// PreviousPosition and Position are the positions of the stream before and after the batch.
	// They are equal for a batch out of turn.
	PreviousPosition uint64
	Position         uint64
	// CaughtUp reports that the sender had nothing left to send after this batch. It ends a full sync.
	CaughtUp bool
	// Resent reports that the batch answers a ResendRequest.
	Resent bool
	// Requested reports that the batch is sent out of turn because of an OwnerRequest.
	Requested bool
	// DeltaCount is the number of deltas. ForEachGroup passes that many, if it returns no error.
	DeltaCount int
	// Owners are the owners that deltas refer to by index. Their names are valid: see CheckName.
	Owners []Owner

	// data is the encoded Batch. ForEachGroup reads the deltas from it. nil before Parse.
	data []byte
}

// Owner is an owner in a received batch. It is valid as long as the message. Copy returns an owner that
// outlives it.
type Owner struct {
	// Node is the name of the node. It points into the message.
	Node []byte
	// Number is the incarnation of the node.
	Number uint64
}

// Copy returns the owner with a copied name. The caller owns it.
func (w Owner) Copy() table.Owner {
	return table.Owner{Node: string(w.Node), Incarnation: w.Number}
}

// Delta is a delta of a received batch. Its fields are as the peer sent them: a decoder of the peer's
// schema reads Key and Value, and the caller must check the other fields.
type Delta struct {
	// Key and Value are encoded by the schema of the peer. They point into the message. Encoders omit
	// Value for a delete.
	Key, Value []byte
	// Version is the version of the record. 0: the message had none.
	Version uint64
	// Owner is the index of the owner in Batch.Owners. It may be out of range. 0 if the message had
	// none, which is the first owner.
	Owner uint32
	// Operation is the kind of change. It may be unknown.
	Operation mapsyncv1.Operation
}

// BatchPayload returns the encoded Batch of an encoded SubscribeResponse that contains only a Batch. ok
// reports whether that is so. The stock decoder handles all other messages. data is a part of response.
//
// A stream consists mostly of batches, and the generated code would allocate for each of their deltas. A
// stock encoder may write the same message in another form, with other fields around the batch. ok is
// then false, and the slower path gives the same result.
func BatchPayload(response []byte) (data []byte, ok bool) {
	if len(response) == 0 || response[0] != tagResponseBatch {
		return nil, false
	}
	data, n := protowire.ConsumeBytes(response[1:])
	return data, n == len(response)-1
}

// Parse reads all fields of an encoded Batch except the deltas, which it counts. It keeps data. The
// sender writes the deltas last, but protobuf does not guarantee an order, so a second pass reads
// them: see ForEachGroup. After an error, which wraps ErrMalformed, the content of b is undefined.
//
// As in protobuf, the last of several fields with one value counts, and unknown fields are skipped, so
// that a later release may add some. Fields that the message lacks are zero.
func (b *Batch) Parse(data []byte) error {
	// The slice of owners is reused.
	*b = Batch{data: data, Owners: b.Owners[:0]}
	var origin Owner
	for rest := data; len(rest) > 0; {
		n := 0
		var err error
		// All tags are one byte. The default case checks other tags.
		switch rest[0] {
		case tagBatchDelta:
			_, n = consumeBytes(rest)
			b.DeltaCount++
		case tagBatchOwner:
			var w Owner
			if w, n, err = consumeOwner(rest); err == nil && n > 0 {
				b.Owners = append(b.Owners, w)
			}
		case tagBatchOrigin:
			origin, n, err = consumeOwner(rest)
		case tagBatchMap:
			n = b.consumeIndex(rest)
		case tagBatchPrevious:
			b.PreviousPosition, n = consumeVarint(rest)
		case tagBatchPosition:
			b.Position, n = consumeVarint(rest)
		case tagBatchCaughtUp:
			var v uint64
			v, n = consumeVarint(rest)
			b.CaughtUp = v != 0
		case tagBatchResent:
			var v uint64
			v, n = consumeVarint(rest)
			b.Resent = v != 0
		case tagBatchRequested:
			var v uint64
			v, n = consumeVarint(rest)
			b.Requested = v != 0
		default:
			n = consumeUnknown(rest)
		}
		if err != nil {
			return err
		}
		// A size of 0 marks a field that is truncated, or whose wire type is invalid.
		if n <= 0 {
			return fmt.Errorf("decode batch at byte %d of %d: %w", len(data)-len(rest), len(data), ErrMalformed)
		}
		rest = rest[n:]
	}
	// A message without an origin has the zero owner, which is not the name of any peer.
	b.Origin = origin.Copy()
	return nil
}

// Size returns the size of the encoded batch in bytes; 0 before Parse. It counts as traffic.
func (b *Batch) Size() int { return len(b.data) }

// consumeIndex reads the number of the subscription and returns the size of the field. It truncates the
// number to 32 bits, as protobuf does for a uint32.
func (b *Batch) consumeIndex(rest []byte) int {
	v, n := consumeVarint(rest)
	b.Index = uint32(v)
	return n
}

// ForEachGroup calls fn for the deltas in order, in groups of len(buf), until fn returns an error. The
// last group is smaller and may be empty. buf must not be empty. fn may change the deltas of its group,
// which are valid during the call. The error is that of fn, or wraps ErrMalformed.
//
// A group lets the caller prefetch the records of several keys. Parse must have returned without an
// error. Groups before an error have been passed to fn.
func (b *Batch) ForEachGroup(buf []Delta, fn func([]Delta) error) error {
	n := 0
	for rest := b.data; len(rest) > 0; {
		if rest[0] != tagBatchDelta {
			// Parse has checked that the field is complete.
			rest = rest[consumeUnknown(rest):]
			continue
		}
		data, size := consumeBytes(rest)
		if size <= 0 || !buf[n].parse(data) {
			return fmt.Errorf("decode delta at byte %d of %d: %w", len(b.data)-len(rest), len(b.data), ErrMalformed)
		}
		rest = rest[size:]
		// The group is full. Its deltas are overwritten by those of the next group.
		if n++; n == len(buf) {
			if err := fn(buf); err != nil {
				return err
			}
			n = 0
		}
	}
	return fn(buf[:n])
}

// parse reads a delta. It returns false if the delta is malformed. The slices of d point into b. Fields
// that the message lacks are zero. The caller checks what they mean.
func (d *Delta) parse(b []byte) bool {
	*d = Delta{}
	for len(b) > 0 {
		n := 0
		switch b[0] {
		case tagKey:
			d.Key, n = consumeBytes(b)
		case tagValue:
			d.Value, n = consumeBytes(b)
		case tagVersion:
			// The tag and 8 bytes. Otherwise n stays 0, and the delta is malformed.
			if len(b) >= 9 {
				d.Version, n = binary.LittleEndian.Uint64(b[1:]), 9
			}
		case tagOwner:
			var v uint64
			v, n = consumeVarint(b)
			d.Owner = uint32(v)
		case tagOperation:
			var v uint64
			v, n = consumeVarint(b)
			d.Operation = mapsyncv1.Operation(int32(v))
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
//
// The two fast cases avoid a call for almost all keys and values. The content is a part of b, with a
// capacity that reaches further, so a caller must not append to it.
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

// consumeVarint returns the value of a varint field with a one-byte tag, and the size of the field; 0 if
// it is truncated. Values below 128 take the fast path.
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
	// The sum must not overflow on a machine with an int of 32 bits.
	m := protowire.ConsumeFieldValue(num, typ, b[n:])
	if m < 0 || n > math.MaxInt32-m {
		return 0
	}
	return n + m
}

// consumeOwner returns an Incarnation and the size of the field; 0 if it is truncated. The error is
// that of CheckName.
//
// The name is checked here, so that no caller has to handle a malformed one. An owner without a name is
// malformed, too.
func consumeOwner(b []byte) (w Owner, n int, err error) {
	data, n := consumeBytes(b)
	if n <= 0 {
		return w, 0, nil
	}
	for len(data) > 0 {
		m := 0
		switch {
		case data[0] == tagNode:
			// protobuf uses the last of several names, but requires each of them to be valid.
			if w.Node, m = consumeBytes(data); m > 0 {
				if err := CheckName(w.Node); err != nil {
					return w, 0, err
				}
			}
		case data[0] == tagNumber && len(data) >= 9:
			w.Number, m = binary.LittleEndian.Uint64(data[1:]), 9
		case data[0] != tagNumber:
			// A truncated number leaves m at 0, so it is an error below.
			m = consumeUnknown(data)
		}
		if m <= 0 {
			return w, 0, nil
		}
		data = data[m:]
	}
	return w, n, CheckName(w.Node)
}

// CheckName returns an error that wraps ErrMalformed if the name of a node or map is empty, longer than
// MaxName bytes, or has spaces or characters that are not printable. Names appear in logs, on terminals, in
// labels of metrics and as keys of maps, so all nodes use the same limits.
func CheckName[S string | []byte](name S) error {
	if len(name) == 0 || len(name) > MaxName || !printable.IsName(string(name)) {
		return fmt.Errorf("read node name %.64q of %d bytes: %w", name, len(name), ErrMalformed)
	}
	return nil
}
