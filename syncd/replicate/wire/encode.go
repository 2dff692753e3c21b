package wire

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
	// MaxBatchDeltas is the maximum number of deltas in a batch. It bounds the time for which encoding
	// and merging hold the table's lock.
	MaxBatchDeltas = 512
	// maxBatchBytes is the size in bytes at which a batch counts as full.
	maxBatchBytes = 128 << 10
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

// EncoderOptions configure an [Encoder].
type EncoderOptions struct {
	// Index is the number of the subscription on the stream.
	Index uint32
	// Origin is the name and incarnation of this node, which sends the batches.
	Origin table.Owner
	// Schema encodes the keys and values of the map. Encoders may share it.
	Schema *schema.Encoder
	// Resent and Requested mark batches that are sent out of turn. At most one of them is set.
	Resent, Requested bool
	// Observe reports that the peer holds no records. It gets deletes instead of expiries, and not the keys of records that
	// are not sent.
	Observe bool
	// Unencodable is called by Add for each record that Schema cannot encode, with the error of Schema. It
	// must not keep tx or r. It is not nil if such records exist.
	Unencodable func(tx *table.Tx, r *table.Record, err error)
}

// Encoder encodes the batches of one map for one peer. It is reused: a batch allocates only its frame
// and its buffers, which are pooled. It belongs to one goroutine.
//
// Begin starts a batch. Add appends records while Fits reports room. Finish returns the batch as a
// frame, or Release ends it without a frame.
//
// A batch has two parts: the header with owners and positions, which Finish writes last, and the body
// with the deltas, which Add writes directly in wire format.
type Encoder struct {
	// opt does not change.
	opt EncoderOptions
	// origin is the encoded field for opt.Origin.
	origin []byte
	// times converts time stamps of the current batch.
	times schema.Times
	// maxDeltaBytes is the size of the largest possible delta including its tag and length.
	maxDeltaBytes int

	// key and value are scratch buffers: the sizes of the encoded key and value precede them on the wire.
	key, value []byte

	// slots caches decisions by table.OwnerID. It is valid while ownersReused is unchanged.
	slots []OwnerSlot
	// batchSerial numbers the batches, for OwnerSlot.batchSerial.
	batchSerial uint32
	// ownersReused is table.Tx.OwnersReused as of the last reset of slots.
	ownersReused uint64

	// body holds the encoded deltas of the current batch. It is a slice of the pooled buffer unless it
	// has outgrown that buffer. Each delta in it is complete, so a batch can end after any of them.
	body []byte
	// pooled is the buffer that Begin took from the pool; nil between Finish or Release and Begin.
	pooled *[]byte
	// owners holds the encoded owner fields of the batch. They are in the order of their indexes.
	owners []byte
	// ownerCount is the number of fields in owners.
	ownerCount uint32
	// deltas is the number of deltas in body.
	deltas int
	// unencodable is the number of records of the batch that could not be encoded. body has at most their
	// keys.
	unencodable int
}

// OwnerSlot caches what an [Encoder] and its caller have decided about an owner. The caller decides
// whether the owner's records are sent.
type OwnerSlot struct {
	// Epoch is the number of the rule under which the caller decided Send; 0: not decided. The Encoder
	// sets it to 0 if the table uses the id for another owner.
	Epoch uint64
	// batchSerial is the batch for which index is valid.
	batchSerial uint32
	// index is the index of the owner in that batch.
	index uint32
	// Send reports whether the owner's records are sent, under the rule of Epoch. The Encoder does not
	// read it.
	Send bool
}

// NewEncoder returns an Encoder without a batch.
func NewEncoder(opt EncoderOptions) *Encoder {
	// The largest sizes of the fields of a delta in bytes, including tags.
	const delta, field, version, operation, owner = 1 + binary.MaxVarintLen32, 1 + binary.MaxVarintLen32, 9, 2, 6
	maxKey, maxValue := opt.Schema.MaxKey(), opt.Schema.MaxValue()
	return &Encoder{
		opt:           opt,
		origin:        appendOwner(nil, tagBatchOrigin, opt.Origin),
		key:           make([]byte, 0, maxKey),
		value:         make([]byte, 0, maxValue),
		maxDeltaBytes: delta + 2*field + maxKey + maxValue + version + operation + owner,
	}
}

// Begin starts a batch for about the expected number of deltas. times converts the time stamps of the
// batch. All batches of an Encoder must be of the same table, and tx must be valid until the last Add.
// Finish or Release must have ended the previous batch. A wrong estimate costs a larger buffer or a
// smaller batch.
func (e *Encoder) Begin(tx *table.Tx, expected uint64, times schema.Times) {
	e.times = times
	e.resetReusedOwners(tx)
	e.batchSerial++
	e.owners, e.ownerCount, e.deltas = e.owners[:0], 0, 0
	e.unencodable = 0
	n := int(min(expected, MaxBatchDeltas))
	// The buffer has room for one delta of any size at least, and for a full batch at most.
	e.body, e.pooled = newBuffer(max(e.maxDeltaBytes, min(n*e.maxDeltaBytes, maxBatchBytes)))
}

// Deltas returns the number of deltas in the current or last batch.
func (e *Encoder) Deltas() int { return e.deltas }

// Unencodable returns the number of records of the current or last batch that could not be encoded.
func (e *Encoder) Unencodable() int { return e.unencodable }

// Fits reports whether the batch has room for one more delta of any size. It is conservative: the
// largest delta that the schema allows must fit. The body therefore never grows beyond its buffer while
// the caller follows it.
func (e *Encoder) Fits() bool {
	return e.deltas < MaxBatchDeltas && cap(e.body)-len(e.body) >= e.maxDeltaBytes
}

// resetReusedOwners clears the cache of owners if the table has reused an id for another owner. A stale
// slot would apply a decision about another owner.
func (e *Encoder) resetReusedOwners(tx *table.Tx) {
	if n := tx.OwnersReused(); n != e.ownersReused {
		clear(e.slots)
		e.ownersReused = n
	}
}

// Slot returns the slot of an owner. It is valid until the next call of Slot or Begin. The number of
// slots is bounded by the ids of the table, which are 16 bits.
func (e *Encoder) Slot(id table.OwnerID) *OwnerSlot {
	for int(id) >= len(e.slots) {
		e.slots = append(e.slots, OwnerSlot{})
	}
	return &e.slots[id]
}

// Add appends a record to the batch, which must have room: see Fits. s is the slot of the record's
// owner. A record that cannot be encoded is counted and passed to EncoderOptions.Unencodable, and only its
// key is sent, so that the peer does not take it for deleted. Of an undecided record, only the key is sent, too. Requested
// batches and those for observers lack these keys. No peer receives an inferred tombstone, or an entry of which peers have only
// named the owner.
//
// It copies the record, so r need not stay valid. The caller has decided that the owner's records are
// sent. One record that cannot be encoded does not end the batch: the others must reach the peer.
func (e *Encoder) Add(tx *table.Tx, s *OwnerSlot, r *table.Record) {
	names := !e.opt.Observe && !e.opt.Requested
	if r.Inferred || r.Named || (r.Undecided && !names) {
		return
	}
	key, value, op, err := e.encode(r)
	if err != nil {
		e.unencodable++
		e.opt.Unencodable(tx, r, err)
		if r.Delete || !names {
			return
		}
	}
	if err != nil || r.Undecided {
		key, value, op = e.opt.Schema.AppendKnownKey(e.key[:0], r.Key), nil, mapsyncv1.Operation_OPERATION_UNSENT
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

// encode encodes key and value of a record into the scratch buffers, and returns the operation. Observers
// receive a value with an interface that has no name, without that name: they only display it.
func (e *Encoder) encode(r *table.Record) (key, value []byte, op mapsyncv1.Operation, err error) {
	key, err = e.opt.Schema.AppendKey(e.key[:0], r.Key)
	switch {
	case err != nil:
		return nil, nil, 0, err
	case r.Expired && !e.opt.Observe:
		return key, nil, mapsyncv1.Operation_OPERATION_EXPIRE, nil
	case r.Delete:
		return key, nil, mapsyncv1.Operation_OPERATION_DELETE, nil
	}
	if e.opt.Observe {
		return key, e.opt.Schema.AppendValue(e.value[:0], r.Key, r.Value, &e.times), mapsyncv1.Operation_OPERATION_UPDATE, nil
	}
	value, err = e.opt.Schema.AppendNamedValue(e.value[:0], r.Key, r.Value, &e.times)
	return key, value, mapsyncv1.Operation_OPERATION_UPDATE, err
}

// Finish ends the batch and returns it as an encoded SubscribeResponse. previous and position are the
// positions of the stream before and after the batch. caughtUp reports that nothing is left to send. The
// caller owns the frame, and must send or free it. Before the first Begin, and after Release, Finish
// returns a batch without deltas. Fields are in the order of their numbers, as the stock encoder writes
// them, apart from the flags and the deltas.
func (e *Encoder) Finish(previous, position uint64, caughtUp bool) *SentFrame {
	// The header goes into a buffer of its own: its size is fixed only after the last delta.
	head, pooled := newBuffer(64 + len(e.origin) + len(e.owners))
	size := fieldSize(uint64(e.opt.Index)) + len(e.origin) + fieldSize(previous) + fieldSize(position) +
		len(e.owners) + len(e.body)
	if caughtUp {
		size += 2
	}
	if e.opt.Resent {
		size += 2
	}
	if e.opt.Requested {
		size += 2
	}
	head = appendVarint(append(head, tagResponseBatch), uint64(size))
	head = appendField(head, tagBatchMap, uint64(e.opt.Index))
	head = append(head, e.origin...)
	head = appendField(head, tagBatchPrevious, previous)
	head = appendField(head, tagBatchPosition, position)
	head = append(head, e.owners...)
	if caughtUp {
		head = append(head, tagBatchCaughtUp, 1)
	}
	if e.opt.Resent {
		head = append(head, tagBatchResent, 1)
	}
	if e.opt.Requested {
		head = append(head, tagBatchRequested, 1)
	}
	out := &SentFrame{data: mem.BufferSlice{newMemBuffer(head, pooled)}}
	// gRPC sends both buffers without a copy and returns them to the pool.
	if len(e.body) > 0 {
		out.data = append(out.data, newMemBuffer(e.body, e.pooled))
		e.body, e.pooled = nil, nil
	}
	e.Release()
	return out
}

// Release ends the batch without a frame, if there is a batch, and returns its buffer to the pool. It
// may be called more than once, and after Finish.
func (e *Encoder) Release() {
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

// bytesSize returns the size of a length-delimited field with n bytes of content; 0 for empty content,
// which is omitted. The tag has one byte.
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
