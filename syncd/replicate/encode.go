package replicate

import (
	"encoding/binary"
	"math/bits"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/schema"
	"mapsync/syncd/table"
)

const (
	// maxBatchDeltas and maxBatchBytes bound a batch, and with it how long the
	// encoding and the merging of one hold the table's lock.
	maxBatchDeltas = 512
	maxBatchBytes  = 128 << 10
	// maxBatchWalk bounds the records that are looked at for one batch.
	maxBatchWalk = 4096
)

// Tags of the messages that are encoded and decoded by hand, as one byte: all
// their field numbers are below 16.
const (
	tagResponseBatch = 6<<3 | byte(protowire.BytesType)

	tagBatchMap      = 1<<3 | byte(protowire.VarintType)
	tagBatchOrigin   = 2<<3 | byte(protowire.BytesType)
	tagBatchPrevious = 3<<3 | byte(protowire.VarintType)
	tagBatchPosition = 4<<3 | byte(protowire.VarintType)
	tagBatchOwner    = 5<<3 | byte(protowire.BytesType)
	tagBatchDelta    = 6<<3 | byte(protowire.BytesType)
	tagBatchCaughtUp = 7<<3 | byte(protowire.VarintType)
	tagBatchRetold   = 8<<3 | byte(protowire.VarintType)
	tagBatchRequest  = 9<<3 | byte(protowire.VarintType)

	tagNode   = 1<<3 | byte(protowire.BytesType)
	tagNumber = 2<<3 | byte(protowire.Fixed64Type)

	tagKey       = 1<<3 | byte(protowire.BytesType)
	tagValue     = 2<<3 | byte(protowire.BytesType)
	tagVersion   = 3<<3 | byte(protowire.Fixed64Type)
	tagOwner     = 4<<3 | byte(protowire.VarintType)
	tagOperation = 5<<3 | byte(protowire.VarintType)
)

// encoder writes the batches of one map to one peer. It is kept, so that a
// batch costs no allocation but its buffers.
type encoder struct {
	index  uint32
	origin []byte // encoded field
	m      *localMap
	codec  *schema.Encoder
	times  schema.Times // of the batch
	worst  int          // size of the largest delta with everything around
	// retold and requested mark batches that are out of turn.
	retold, requested bool

	// expiries: the peer understands OPERATION_EXPIRE. An observer that does not receives
	// deletes in its place, a replica nothing.
	expiries, observe bool

	// key and value are encoded here, because their sizes come before them.
	key, value []byte

	slots  []ownerSlot // by table.OwnerID
	serial uint32      // of the batch, for ownerSlot.serial
	reused uint64      // table.Tx.OwnersReused as of slots

	body   []byte
	pooled *[]byte
	owners []byte // encoded fields
	named  uint32 // number of owners
	deltas int
	failed int // records that cannot be encoded
}

// ownerSlot is what is known about an owner: whether its records are served,
// which holds for one rule, and its index in the batch with the given serial.
type ownerSlot struct {
	rule   uint64
	serial uint32
	index  uint32
	serve  bool
}

func newEncoder(index uint32, origin table.Owner, m *localMap) *encoder {
	const delta, field, version, operation, owner = 1 + binary.MaxVarintLen32, 1 + binary.MaxVarintLen32, 9, 2, 6
	codec := m.codec
	return &encoder{
		m:      m,
		index:  index,
		origin: appendOwner(nil, tagBatchOrigin, origin),
		codec:  codec,
		key:    make([]byte, 0, codec.MaxKey()),
		value:  make([]byte, 0, codec.MaxValue()),
		worst:  delta + 2*field + codec.MaxKey() + codec.MaxValue() + version + operation + owner,
	}
}

// begin starts a batch for about the given number of deltas.
func (e *encoder) begin(expected uint64) {
	e.serial++
	e.owners, e.named, e.deltas = e.owners[:0], 0, 0
	e.failed = 0
	n := int(min(expected, maxBatchDeltas))
	e.body, e.pooled = newBuffer(max(e.worst, min(n*e.worst, maxBatchBytes)))
}

// fits reports whether one more delta has room.
func (e *encoder) fits() bool {
	return e.deltas < maxBatchDeltas && cap(e.body)-len(e.body) >= e.worst
}

// check drops what is kept about owners when ids were given to others.
func (e *encoder) check(tx *table.Tx) {
	if n := tx.OwnersReused(); n != e.reused {
		clear(e.slots)
		e.reused = n
	}
}

// slot returns what is kept about an owner.
func (e *encoder) slot(id table.OwnerID) *ownerSlot {
	for int(id) >= len(e.slots) {
		e.slots = append(e.slots, ownerSlot{})
	}
	return &e.slots[id]
}

// add appends a record whose owner is the one of the slot. One that cannot be
// encoded is counted instead.
func (e *encoder) add(tx *table.Tx, s *ownerSlot, r *table.Record) {
	if r.Expired && !e.expiries && !e.observe {
		return
	}
	key, err := e.codec.AppendKey(e.key[:0], r.Key)
	if err != nil {
		e.failed++
		e.m.noteUnsent(tx, r, err)
		return
	}
	value, op := e.value[:0], mapsyncv1.Operation_OPERATION_DELETE
	if !r.Delete {
		value, op = e.codec.AppendValue(value, r.Value, &e.times), mapsyncv1.Operation_OPERATION_UPDATE
	}
	if r.Expired && e.expiries {
		op = mapsyncv1.Operation_OPERATION_EXPIRE
	}
	if s.serial != e.serial {
		s.serial, s.index = e.serial, e.named
		e.named++
		e.owners = appendOwner(e.owners, tagBatchOwner, tx.Owner(r.Owner))
	}
	const version, operation = 9, 2
	size := bytesSize(len(key)) + bytesSize(len(value)) + version + fieldSize(uint64(s.index)) + operation
	b := appendVarint(append(e.body, tagBatchDelta), uint64(size))
	b = appendBytes(b, tagKey, key)
	b = appendBytes(b, tagValue, value)
	b = binary.LittleEndian.AppendUint64(append(b, tagVersion), uint64(r.Version))
	b = appendField(b, tagOwner, uint64(s.index))
	e.body = append(b, tagOperation, byte(op))
	e.deltas++
}

// finish returns the encoded SubscribeResponse. Its buffers are the caller's.
func (e *encoder) finish(previous, position uint64, caughtUp bool) *outbound {
	head, pooled := newBuffer(64 + len(e.origin) + len(e.owners))
	size := fieldSize(uint64(e.index)) + len(e.origin) + fieldSize(previous) + fieldSize(position) +
		len(e.owners) + len(e.body)
	if caughtUp {
		size += 2
	}
	if e.retold {
		size += 2
	}
	if e.requested {
		size += 2
	}
	head = appendVarint(append(head, tagResponseBatch), uint64(size))
	head = appendField(head, tagBatchMap, uint64(e.index))
	head = append(head, e.origin...)
	head = appendField(head, tagBatchPrevious, previous)
	head = appendField(head, tagBatchPosition, position)
	head = append(head, e.owners...)
	if caughtUp {
		head = append(head, tagBatchCaughtUp, 1)
	}
	if e.retold {
		head = append(head, tagBatchRetold, 1)
	}
	if e.requested {
		head = append(head, tagBatchRequest, 1)
	}
	out := &outbound{data: mem.BufferSlice{seal(head, pooled)}}
	if len(e.body) > 0 {
		out.data = append(out.data, seal(e.body, e.pooled))
		e.body, e.pooled = nil, nil
	}
	e.drop()
	return out
}

// drop gives back what begin took, if finish did not use it.
func (e *encoder) drop() {
	if e.pooled != nil {
		buffers.Put(e.pooled)
		e.body, e.pooled = nil, nil
	}
}

func appendOwner(b []byte, tag byte, o table.Owner) []byte {
	number := 0
	if o.Incarnation != 0 {
		number = 9
	}
	b = appendVarint(append(b, tag), uint64(1+protowire.SizeBytes(len(o.Node))+number))
	b = protowire.AppendString(append(b, tagNode), o.Node)
	if number > 0 {
		b = binary.LittleEndian.AppendUint64(append(b, tagNumber), o.Incarnation)
	}
	return b
}

// appendField appends a number, which as zero is left out.
func appendField(b []byte, tag byte, v uint64) []byte {
	if v == 0 {
		return b
	}
	return appendVarint(append(b, tag), v)
}

func fieldSize(v uint64) int {
	if v == 0 {
		return 0
	}
	return 1 + (bits.Len64(v)+6)/7
}

// appendBytes appends what is left out if it is empty.
func appendBytes(b []byte, tag byte, v []byte) []byte {
	if len(v) == 0 {
		return b
	}
	return append(appendVarint(append(b, tag), uint64(len(v))), v...)
}

func bytesSize(n int) int {
	if n == 0 {
		return 0
	}
	return fieldSize(uint64(n)) + n
}

// appendVarint is protowire.AppendVarint in a size that the compiler inlines.
func appendVarint(b []byte, v uint64) []byte {
	for v >= 0x80 {
		b = append(b, byte(v)|0x80)
		v >>= 7
	}
	return append(b, byte(v))
}
