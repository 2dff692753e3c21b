package drained_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"testing"

	"mapsync/syncd/capture"
	"mapsync/syncd/drained"
	"mapsync/syncd/kmap"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
)

func TestMain(m *testing.M) {
	if err := rlimit.RemoveMemlock(); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// The layout of the drained maps of the tests: packets (4 bytes), flags (4 bytes), bytes (8 bytes).
const keySize, valueSize = 12, 16

func options(folder string) drained.Options {
	return drained.Options{
		Folder: folder, Type: ebpf.Hash, KeySize: keySize, ValueSize: valueSize, MaxEntries: 100_000,
		Added:   []drained.Range{{Offset: 0, Size: 4}, {Offset: 8, Size: 8}},
		Methods: []drained.Method{drained.BySyscall}, Entries: []string{capture.BPFEntry}, Logger: slog.New(slog.DiscardHandler),
		MeasureCreate: kmap.CallCreateSums.Measure,
		EachKey: func(m *ebpf.Map, fn func(key []byte) error) error {
			return kmap.EachKey(context.Background(), m, nil, fn)
		},
	}
}

func openSums(t *testing.T, o drained.Options) *drained.Sums {
	t.Helper()
	s, err := drained.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func newMap(t *testing.T, typ ebpf.MapType) (*ebpf.Map, uint32) {
	t.Helper()
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: typ, KeySize: keySize, ValueSize: valueSize, MaxEntries: 100_000})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	info, err := m.Info()
	if err != nil {
		t.Fatal(err)
	}
	id, _ := info.ID()
	return m, uint32(id)
}

func key(i int) []byte {
	k := make([]byte, keySize)
	binary.NativeEndian.PutUint64(k[2:], uint64(i))
	return k
}

func value(packets, flags uint32, bytes uint64) []byte {
	v := binary.NativeEndian.AppendUint32(nil, packets)
	v = binary.NativeEndian.AppendUint32(v, flags)
	return binary.NativeEndian.AppendUint64(v, bytes)
}

func put(t *testing.T, m *ebpf.Map, i int, v []byte) {
	t.Helper()
	if err := m.Put(key(i), v); err != nil {
		t.Fatal(err)
	}
}

// drain empties a map by batch lookup-and-delete, with at most size entries in a call.
func drain(t *testing.T, m *ebpf.Map, size int) (n int) {
	t.Helper()
	keys, values := make([][keySize]byte, size), make([][valueSize]byte, size)
	for cursor := (ebpf.MapBatchCursor{}); ; {
		count, err := m.BatchLookupAndDelete(&cursor, keys, values, nil)
		n += count
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			return n
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func sum(t *testing.T, s *drained.Sums, i int) string {
	t.Helper()
	origin := s.Origin()
	v := make([]byte, valueSize)
	if err := s.Map().Lookup(append(key(i), origin[:]...), &v); err != nil {
		return "none"
	}
	return fmt.Sprintf("packets %d, flags %d, bytes %d", binary.NativeEndian.Uint32(v), binary.NativeEndian.Uint32(v[4:]), binary.NativeEndian.Uint64(v[8:]))
}

// eachMethod runs a test with each method that this kernel has.
func eachMethod(t *testing.T, test func(t *testing.T, method drained.Method)) {
	methods := []drained.Method{drained.ByFexit, drained.ByKprobe}
	if os.Getenv("MAPSYNC_KERNEL") == "" { // the emulator crashes on tracepoints of system calls
		methods = append(methods, drained.BySyscall)
	}
	for _, method := range methods {
		t.Run(string(method), func(t *testing.T) {
			err := attachable(method)
			if errors.Is(err, drained.ErrUnsupported) && os.Getenv("MAPSYNC_KERNEL") == "" {
				t.Skip(err)
			}
			if err != nil {
				t.Fatal(err)
			}
			test(t, method)
		})
	}
}

var attachErrors = make(map[drained.Method]error)

// attachable returns the error with which this kernel refuses a method.
func attachable(method drained.Method) error {
	if err, tried := attachErrors[method]; tried {
		return err
	}
	o := options("")
	o.Methods = []drained.Method{method}
	s, err := drained.Open(o)
	if err == nil {
		err = s.Close()
	}
	attachErrors[method] = err
	return err
}
