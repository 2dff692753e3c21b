package capture

import (
	"encoding/binary"
	"fmt"
	"time"

	"mapsync/syncd/table"
)

// eventSize is the size of struct event in bpf/event.h, in bytes.
const eventSize = 24

// opKeys is the operation of an event with keys that bpf(2) may have changed: OP_KEYS in bpf/event.h.
const opKeys = table.OpEvict + 1

// opDeletedKeys is opKeys for a call that deletes: OP_DELETED_KEYS in bpf/event.h.
const opDeletedKeys = opKeys + 1

// opLookup is the operation of an event with the key of an entry that a program has looked up: OP_LOOKUP in
// bpf/event.h.
const opLookup = opDeletedKeys + 1

// event is one event from the kernel. data refers to the buffer of the source and is valid until
// its next read.
type event struct {
	seq     uint64 // number within its CPU and slot, from 1
	time    uint64 // ns since boot, from bpf_ktime_get_ns
	mapID   uint32
	cpu     uint16
	slot    uint8
	op      table.Op
	context table.Context
	caller  table.Caller // of a delete by bpf(2); zero: unknown
	data    []byte       // key and value, each padded to 8 bytes; of a call of bpf(2) the number of keys, and the keys
}

// ofCall reports whether the event has keys that a call of bpf(2) may have changed.
func (e *event) ofCall() bool { return e.op == opKeys || e.op == opDeletedKeys }

// parseHeader decodes the head of an event. fill checks the size of key and value, which depends on
// the map.
func parseHeader(sample []byte) (event, error) {
	if len(sample) < eventSize {
		return event{}, fmt.Errorf("event of %d bytes is shorter than its header", len(sample))
	}
	e := event{
		seq:   binary.NativeEndian.Uint64(sample),
		time:  binary.NativeEndian.Uint64(sample[8:]),
		mapID: binary.NativeEndian.Uint32(sample[16:]),
		cpu:   binary.NativeEndian.Uint16(sample[20:]),
		slot:  sample[22],
		data:  sample[eventSize:],
	}
	e.op, e.context = table.Op(sample[23]>>4), table.Context(sample[23]&15)
	if e.op > opLookup || e.context > table.ContextOwn {
		return event{}, fmt.Errorf("event has operation %d and context %d", e.op, e.context)
	}
	return e, nil
}

// fill sets c to the change that e reports, for a map with these sizes in bytes. wallOffset is
// added to the event's time, in ns. c refers to the memory of e.
func (e *event) fill(c *table.Change, keySize, valueSize int, wallOffset int64) error {
	valueAt := align8(keySize)
	want := valueAt
	if e.op == table.OpUpdate {
		want += align8(valueSize)
	}
	if e.op == table.OpDelete && e.context == table.ContextSyscall && len(e.data) >= want+callerSize {
		e.caller = parseCaller(e.data[want:])
		want += callerSize
	}
	// A perf record ends with up to 7 bytes of padding.
	if len(e.data) < want || len(e.data) > want+7 {
		return fmt.Errorf("event of map %d carries %d bytes, its entries need %d",
			e.mapID, len(e.data), want)
	}
	c.Key, c.Value = e.data[:keySize], nil
	if e.op == table.OpUpdate {
		c.Value = e.data[valueAt : valueAt+valueSize]
	}
	c.Time = int64(e.time) + wallOffset
	c.CPU, c.Op, c.Context = e.cpu, e.op, e.context
	return nil
}

// callerSize is the size of struct caller in bpf/event.h, in bytes.
const callerSize = 16

// parseCaller decodes the process of a delete.
func parseCaller(data []byte) table.Caller {
	return table.Caller{
		Process: table.Process{ID: binary.NativeEndian.Uint32(data), Start: int64(binary.NativeEndian.Uint64(data[8:]))},
		Age:     time.Duration(binary.NativeEndian.Uint32(data[4:])) * time.Millisecond,
	}
}

// keys returns the keys of an event of a call, one after the other, and sets e.caller. It refers to the memory of e.
func (e *event) keys(keySize int) ([]byte, error) {
	const head = 8 + callerSize
	if len(e.data) >= head {
		n := binary.NativeEndian.Uint64(e.data)
		e.caller = parseCaller(e.data[8:])
		if keys := e.data[head:]; n <= uint64(len(keys)/keySize) && len(keys)-int(n)*keySize <= 7 {
			return keys[:int(n)*keySize], nil
		}
	}
	return nil, fmt.Errorf("event of map %d carries %d bytes, which are not its keys", e.mapID, len(e.data))
}

func align8(n int) int { return (n + 7) &^ 7 }
