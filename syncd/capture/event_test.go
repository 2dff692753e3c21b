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
