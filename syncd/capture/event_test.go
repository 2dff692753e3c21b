package capture

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	"mapsync/syncd/table"

	"github.com/cilium/ebpf"
)

func FuzzEvent(f *testing.F) {
	f.Add(make([]byte, 24+8+8), 8, 8)
	f.Add(append(bytes.Repeat([]byte{1}, 23), 0x10, 1, 2, 3, 4, 5, 6, 7, 8), 5, 9)
	f.Add(append(bytes.Repeat([]byte{1}, 23), 0x32, 2, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6), 3, 9)
	f.Fuzz(func(t *testing.T, sample []byte, keySize, valueSize int) {
		if keySize < 1 || keySize > MaxKeySize || valueSize < 1 || valueSize > MaxValueSize {
			return
		}
		e, err := parseHeader(sample)
		if err != nil {
			return
		}
		var s sequence
		s.missing(e.cpu, e.slot, e.seq)
		if e.ofCall() {
			if keys, err := e.keys(keySize); err == nil && (len(keys)%keySize != 0 || len(keys) > len(e.data)) {
				t.Errorf("keys of an event of %d bytes: got %d bytes, want keys of %d", len(e.data), len(keys), keySize)
			}
			return
		}
		var c table.Change
		if err := e.fill(&c, keySize, valueSize, 0); err != nil {
			return
		}
		if len(c.Key) != keySize || c.Op == table.OpUpdate && len(c.Value) != valueSize || c.Op != table.OpUpdate && c.Value != nil {
			t.Errorf("%s event: got key of %d and value of %d bytes, want the sizes of the map",
				c.Op, len(c.Key), len(c.Value))
		}
	})
}

// oneCaller is the process 258, which started 2 s after the boot and 1 s before the event.
var oneCaller = binary.NativeEndian.AppendUint64(binary.NativeEndian.AppendUint32(binary.NativeEndian.AppendUint32(nil, 258), 1000), 2_000_000_000)

// TestCallerOfEvent: a delete by bpf(2) may end with its process, also with the padding of a perf record.
func TestCallerOfEvent(t *testing.T) {
	want := table.Caller{Process: table.Process{ID: 258, Start: 2_000_000_000}, Age: time.Second}
	for padding := range 8 {
		e := event{op: table.OpDelete, context: table.ContextSyscall, data: append(append(make([]byte, 8), oneCaller...), make([]byte, padding)...)}
		var c table.Change
		if err := e.fill(&c, 5, 16, 0); err != nil || e.caller != want || len(c.Key) != 5 {
			t.Errorf("delete with padding %d: got caller %+v, key of %d bytes and error %v, want %+v", padding, e.caller, len(c.Key), err, want)
		}
	}
	calls := event{op: opDeletedKeys, data: append(make([]byte, 8), oneCaller...)}
	if _, err := calls.keys(5); err != nil || calls.caller != want {
		t.Errorf("keys of a call: got caller %+v and error %v, want %+v", calls.caller, err, want)
	}
	for _, op := range []table.Op{table.OpUpdate, table.OpDelete} {
		e := event{op: op, context: table.ContextPacket, data: make([]byte, 8+callerSize)}
		if err := e.fill(new(table.Change), 5, 3, 0); err == nil {
			t.Errorf("%s of a packet with a caller: got no error, want one", op)
		}
	}
}

// TestKeysOfEvent checks the number of keys against the size of the event.
func TestKeysOfEvent(t *testing.T) {
	for _, c := range []struct {
		count   byte
		bytes   int // of keys and padding
		want    int // bytes of keys
		refused bool
	}{{count: 0, want: 0}, {count: 2, bytes: 10, want: 10}, {count: 2, bytes: 17, want: 10}, {count: 2, bytes: 18, refused: true}, {count: 3, bytes: 14, refused: true}} {
		data := append([]byte{c.count, 0, 0, 0, 0, 0, 0, 0}, oneCaller...)
		e := event{data: append(data, make([]byte, c.bytes)...)}
		keys, err := e.keys(5)
		if len(keys) != c.want || (err != nil) != c.refused {
			t.Errorf("%d keys of 5 bytes in %d bytes: got %d bytes, error %v, want %d bytes, refused %t", c.count, c.bytes, len(keys), err, c.want, c.refused)
		}
	}
	if _, err := (&event{data: make([]byte, 7+callerSize)}).keys(5); err == nil {
		t.Error("event without a number of keys: got no error, want an error")
	}
	if _, err := (&event{data: bytes.Repeat([]byte{0xff}, 4096)}).keys(5); err == nil {
		t.Error("event with a number of keys above its size: got no error, want an error")
	}
}

func TestSequenceFindsGaps(t *testing.T) {
	var s sequence
	for _, step := range []struct {
		cpu  uint16
		slot uint8
		seq  uint64
		want uint64
	}{{0, 0, 1, 0}, {0, 0, 2, 0}, {0, 1, 1, 0}, {3, 0, 4, 3}, {0, 0, 10, 7}, {0, 0, 9, 0}, {0, 0, 11, 0}} {
		if got := s.missing(step.cpu, step.slot, step.seq); got != step.want {
			t.Errorf("missing at %+v: got %d, want %d", step, got, step.want)
		}
	}
}

// TestOpenSourceErrorReturnsNil checks that openSource returns a nil interface on error. A non-nil
// interface with a nil pointer would be closed, and panic.
func TestOpenSourceErrorReturnsNil(t *testing.T) {
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for _, buffer := range []Buffer{BufferRing, BufferPerf} {
		s, err := openSource(&Options{Buffer: buffer, BufferSize: 0}, map[string]*ebpf.Map{string(buffer): m})
		if s != nil || err == nil {
			t.Errorf("open source of %s buffer: got source %v, error %v, want an error only",
				buffer, s != nil, err)
		}
	}
}
