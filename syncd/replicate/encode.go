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
	// maxBatchDeltas and maxBatchBytes bound a batch, and with it the time for which encoding and
	// merging hold the table's lock.
	maxBatchDeltas = 512
	maxBatchBytes  = 128 << 10
	// maxBatchScan bounds the records that are visited for one batch.
	maxBatchScan = 4096
)

// Tags of the messages that this package encodes and decodes itself. Each is one byte, because all
// field numbers are below 16.
const (
	tagResponseBatch = 6<<3 | byte(protowire.BytesType) // SubscribeResponse.batch

	tagBatchMap       = 1<<3 | byte(protowire.VarintType) // Batch.map
	tagBatchOrigin    = 2<<3 | byte(protowire.BytesType)  // Batch.origin
	tagBatchPrevious  = 3<<3 | byte(protowire.VarintType) // Batch.previous_position
	tagBatchPosition  = 4<<3 | byte(protowire.VarintType) // Batch.position
	tagBatchOwner     = 5<<3 | byte(protowire.BytesType)  // Batch.owners
	tagBatchDelta     = 6<<3 | byte(protowire.BytesType)  // Batch.deltas
	tagBatchCaughtUp  = 7<<3 | byte(protowire.VarintType) // Batch.caught_up
	tagBatchResent    = 8<<3 | byte(protowire.VarintType) // Batch.resent
	tagBatchRequested = 9<<3 | byte(protowire.VarintType) // Batch.requested

	tagNode   = 1<<3 | byte(protowire.BytesType)   // Incarnation.node
	tagNumber = 2<<3 | byte(protowire.Fixed64Type) // Incarnation.number

	tagKey       = 1<<3 | byte(protowire.BytesType)   // Delta.key
	tagValue     = 2<<3 | byte(protowire.BytesType)   // Delta.value
	tagVersion   = 3<<3 | byte(protowire.Fixed64Type) // Delta.version
	tagOwner     = 4<<3 | byte(protowire.VarintType)  // Delta.owner
	tagOperation = 5<<3 | byte(protowire.VarintType)  // Delta.operation
)

// encoder encodes the batches of one map for one peer. It is reused: a batch allocates only its
// buffers, which are pooled. It belongs to one goroutine.
type encoder struct {
	// index is the number of the subscription on the stream.
	index uint32
	// origin is the encoded field for this node.
	origin []byte
	// m is the map, whose unsent records the encoder updates.
	m *localMap
	// schemaEncoder is the encoder of m.
	schemaEncoder *schema.Encoder
	// times converts time stamps of the current batch.
	times schema.Times
	// maxDeltaBytes is the size of the largest possible delta including its tag and length.
	maxDeltaBytes int
	// resent and requested mark batches that are sent out of turn.
	resent, requested bool

	// expiries reports that the peer understands OPERATION_EXPIRE. A peer that does not understand
	// it gets deletes instead if it observes, and nothing if it is a replica.
	expiries, observe bool

	// key and value are scratch buffers: the sizes of the encoded key and value precede them on the wire.
	key, value []byte

	// slots caches decisions by table.OwnerID. It is valid while ownersReused is unchanged.
	slots []ownerSlot
	// batchSerial numbers the batches, for ownerSlot.batchSerial.
	batchSerial uint32
	// ownersReused is table.Tx.OwnersReused as of the last reset of slots.
	ownersReused uint64

	// body holds the encoded deltas of the current batch. It is a slice of the pooled buffer unless
	// it has outgrown that buffer.
	body []byte
	// pooled is the buffer that begin took from the pool; nil between finish or release and begin.
	pooled *[]byte
	// owners holds the encoded owner fields of the batch.
	owners []byte
	// ownerCount is the number of fields in owners.
	ownerCount uint32
	// deltas is the number of deltas in body.
	deltas int
	// unencodable is the number of records of the batch that could not be encoded.
	unencodable int
}

// ownerSlot caches what an encoder has decided about an owner.
type ownerSlot struct {
	// epoch is the number of the rule under which send was decided.
	epoch uint64
	// batchSerial is the batch for which index is valid.
	batchSerial uint32
	// index is the index of the owner in that batch.
	index uint32
	// send reports whether the owner's records are sent, under the rule of epoch.
	send bool
}

// newEncoder returns an encoder for batches of this node, whose name and incarnation are origin.
func newEncoder(index uint32, origin table.Owner, m *localMap) *encoder {
	// The largest sizes of the fields of a delta in bytes, including tags.
	const delta, field, version, operation, owner = 1 + binary.MaxVarintLen32, 1 + binary.MaxVarintLen32, 9, 2, 6
	codec := m.schemaEncoder
	return &encoder{
		m:             m,
		index:         index,
		origin:        appendOwner(nil, tagBatchOrigin, origin),
		schemaEncoder: codec,
		key:           make([]byte, 0, codec.MaxKey()),
		value:         make([]byte, 0, codec.MaxValue()),
		maxDeltaBytes: delta + 2*field + codec.MaxKey() + codec.MaxValue() + version + operation + owner,
	}
}

// begin starts a batch for about the expected number of deltas.
func (e *encoder) begin(expected uint64) {
	e.batchSerial++
	e.owners, e.ownerCount, e.deltas = e.owners[:0], 0, 0
	e.unencodable = 0
	n := int(min(expected, maxBatchDeltas))
	// The buffer has room for one delta of any size at least, and for a full batch at most.
	e.body, e.pooled = newBuffer(max(e.maxDeltaBytes, min(n*e.maxDeltaBytes, maxBatchBytes)))
}

// fits reports whether the batch has room for one more delta of any size.
func (e *encoder) fits() bool {
	return e.deltas < maxBatchDeltas && cap(e.body)-len(e.body) >= e.maxDeltaBytes
}

// resetReusedOwners clears the cache of owners if the table has reused an id for another owner.
func (e *encoder) resetReusedOwners(tx *table.Tx) {
	if n := tx.OwnersReused(); n != e.ownersReused {
		clear(e.slots)
		e.ownersReused = n
	}
}

// slot returns the cache slot of an owner. It is valid until the next call.
func (e *encoder) slot(id table.OwnerID) *ownerSlot {
	for int(id) >= len(e.slots) {
		e.slots = append(e.slots, ownerSlot{})
	}
	return &e.slots[id]
}

// add appends a record. s is the slot of its owner. A record that cannot be encoded is counted instead.
func (e *encoder) add(tx *table.Tx, s *ownerSlot, r *table.Record) {
	// A replica that does not understand expiries keeps the record. It is deleted by the next repair.
	if r.Expired && !e.expiries && !e.observe {
		return
	}
	key, err := e.schemaEncoder.AppendKey(e.key[:0], r.Key)
	if err != nil {
		e.unencodable++
		e.m.noteUnsent(tx, r, err)
		return
	}
	// A delete has no value.
	value, op := e.value[:0], mapsyncv1.Operation_OPERATION_DELETE
	if !r.Delete {
		value, op = e.schemaEncoder.AppendValue(value, r.Value, &e.times), mapsyncv1.Operation_OPERATION_UPDATE
	}
	if r.Expired && e.expiries {
		op = mapsyncv1.Operation_OPERATION_EXPIRE
	}
	// The first record of an owner in a batch adds the owner to the batch.
	if s.batchSerial != e.batchSerial {
		s.batchSerial, s.index = e.batchSerial, e.ownerCount
		e.ownerCount++
		e.owners = appendOwner(e.owners, tagBatchOwner, tx.Owner(r.Owner))
	}
	// The sizes of these fields are constant: version and operation are never zero.
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

// finish returns the encoded SubscribeResponse and ends the batch. The caller owns its buffers.
func (e *encoder) finish(previous, position uint64, caughtUp bool) *sentFrame {
	// The header goes into a buffer of its own: its size is fixed only after the last delta.
	head, pooled := newBuffer(64 + len(e.origin) + len(e.owners))
	size := fieldSize(uint64(e.index)) + len(e.origin) + fieldSize(previous) + fieldSize(position) +
		len(e.owners) + len(e.body)
	if caughtUp {
		size += 2
	}
	if e.resent {
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
	if e.resent {
		head = append(head, tagBatchResent, 1)
	}
	if e.requested {
		head = append(head, tagBatchRequested, 1)
	}
	out := &sentFrame{data: mem.BufferSlice{newMemBuffer(head, pooled)}}
	// gRPC sends both buffers without a copy and returns them to the pool.
	if len(e.body) > 0 {
		out.data = append(out.data, newMemBuffer(e.body, e.pooled))
		e.body, e.pooled = nil, nil
	}
	e.release()
	return out
}

// release returns the buffer of begin to the pool if finish has not used it.
func (e *encoder) release() {
	if e.pooled != nil {
		buffers.Put(e.pooled)
		e.body, e.pooled = nil, nil
	}
}

// appendOwner appends an Incarnation as a field with the given tag.
func appendOwner(b []byte, tag byte, o table.Owner) []byte {
	// A zero incarnation is omitted.
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

// appendField appends a varint field. A zero is omitted.
func appendField(b []byte, tag byte, v uint64) []byte {
	if v == 0 {
		return b
	}
	return appendVarint(append(b, tag), v)
}

// fieldSize returns the size of a varint field with a one-byte tag; 0 for a zero, which is omitted.
func fieldSize(v uint64) int {
	if v == 0 {
		return 0
	}
	return 1 + (bits.Len64(v)+6)/7
}

// appendBytes appends a length-delimited field. An empty value is omitted.
func appendBytes(b []byte, tag byte, v []byte) []byte {
	if len(v) == 0 {
		return b
	}
	return append(appendVarint(append(b, tag), uint64(len(v))), v...)
}

// bytesSize returns the size of a length-delimited field with n bytes of content; 0 for empty
// content, which is omitted.
func bytesSize(n int) int {
	if n == 0 {
		return 0
	}
	return fieldSize(uint64(n)) + n
}

// appendVarint is protowire.AppendVarint, small enough for the compiler to inline.
func appendVarint(b []byte, v uint64) []byte {
	for v >= 0x80 {
		b = append(b, byte(v)|0x80)
		v >>= 7
	}
	return append(b, byte(v))
}
