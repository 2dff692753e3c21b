package capture

import (
	"bytes"
	"testing"

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

// TestKeysOfEvent checks the number of keys against the size of the event.
func TestKeysOfEvent(t *testing.T) {
	for _, c := range []struct {
		count   byte
		bytes   int // of keys and padding
		want    int // bytes of keys
		refused bool
	}{{count: 0, want: 0}, {count: 2, bytes: 10, want: 10}, {count: 2, bytes: 17, want: 10}, {count: 2, bytes: 18, refused: true}, {count: 3, bytes: 14, refused: true}} {
		e := event{data: append([]byte{c.count, 0, 0, 0, 0, 0, 0, 0}, make([]byte, c.bytes)...)}
		keys, err := e.keys(5)
		if len(keys) != c.want || (err != nil) != c.refused {
			t.Errorf("%d keys of 5 bytes in %d bytes: got %d bytes, error %v, want %d bytes, refused %t", c.count, c.bytes, len(keys), err, c.want, c.refused)
		}
	}
	if _, err := (&event{data: make([]byte, 7)}).keys(5); err == nil {
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
