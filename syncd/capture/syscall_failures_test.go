package capture_test

import (
	"fmt"
	"runtime"
	"testing"
	"unsafe"

	"mapsync/internal/poll"
	"mapsync/syncd/capture"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// failingCalls are bpf(2) calls of another process that fail, or that name no entry, by operation. Each
// operation gets the map and the memory of a key.
var failingCalls = map[string]struct {
	call func(fd uint32, key unsafe.Pointer) unix.Errno
	want unix.Errno
	// keys is the number of keys that are reported.
	keys int
}{
	"call-without-attributes": {func(uint32, unsafe.Pointer) unix.Errno {
		return bpfCall(unix.BPF_MAP_UPDATE_BATCH, nil, 0)
	}, unix.EINVAL, 0},
	"call-with-a-closed-descriptor": {func(_ uint32, key unsafe.Pointer) unix.Errno {
		a := entryAttributes{fd: 1 << 20, key: key, value: key}
		return bpfCall(unix.BPF_MAP_UPDATE_ELEM, unsafe.Pointer(&a), unsafe.Sizeof(a))
	}, unix.EBADF, 0},
	"lookup-and-delete-into-no-memory": {func(fd uint32, key unsafe.Pointer) unix.Errno {
		a := entryAttributes{fd: fd, key: key}
		return bpfCall(unix.BPF_MAP_LOOKUP_AND_DELETE_ELEM, unsafe.Pointer(&a), unsafe.Sizeof(a))
	}, unix.EFAULT, 1},
	"batch-of-no-keys": {func(fd uint32, _ unsafe.Pointer) unix.Errno {
		a := batchAttributes{fd: fd}
		return bpfCall(unix.BPF_MAP_DELETE_BATCH, unsafe.Pointer(&a), unsafe.Sizeof(a))
	}, 0, 0},
	"batch-with-unknown-flags": {func(fd uint32, key unsafe.Pointer) unix.Errno {
		a := batchAttributes{fd: fd, keys: key, values: key, count: 1 << 31, elemFlags: 1 << 20}
		return bpfCall(unix.BPF_MAP_UPDATE_BATCH, unsafe.Pointer(&a), unsafe.Sizeof(a))
	}, unix.EINVAL, 0},
	"batch-that-ends-at-an-absent-key": {func(fd uint32, key unsafe.Pointer) unix.Errno {
		keys := [2][8]byte{*(*[8]byte)(key), {0xff}}
		a := batchAttributes{fd: fd, keys: unsafe.Pointer(&keys), count: 2}
		err := bpfCall(unix.BPF_MAP_DELETE_BATCH, unsafe.Pointer(&a), unsafe.Sizeof(a))
		runtime.KeepAlive(&keys)
		return err
	}, unix.ENOENT, 1},
}

// entryAttributes and batchAttributes are the attributes of bpf(2) for one entry and for a batch.
type entryAttributes struct {
	fd         uint32
	_          uint32
	key, value unsafe.Pointer
	flags      uint64
}

type batchAttributes struct {
	in, out      uint64
	keys, values unsafe.Pointer
	count, fd    uint32
	elemFlags    uint64
	flags        uint64
}

func bpfCall(command int, attributes unsafe.Pointer, size uintptr) unix.Errno {
	_, _, err := unix.Syscall(unix.SYS_BPF, uintptr(command), uintptr(attributes), size)
	return err
}

// operateFailing makes the call of an operation with the key of an entry.
func operateFailing(m *ebpf.Map, operation string, i int) error {
	c, key := failingCalls[operation], new([8]byte)
	copy(key[:], firstOf(entry(8, 16, i, 0)))
	if err := c.call(uint32(m.FD()), unsafe.Pointer(key)); err != c.want {
		return fmt.Errorf("got error %d, want %d", int(err), int(c.want))
	}
	return nil
}

func firstOf(key, _ []byte) []byte { return key }

// TestFailingCalls checks that calls that fail are reported if they may have changed an entry, and are
// not counted as losses otherwise: any process can make them.
func TestFailingCalls(t *testing.T) {
	skipEmulated(t)
	h := openHooks(t, capture.Options{Attach: capture.AttachSyscall})
	done := make(chan error, 1)
	go func() { done <- h.Tap(h.record) }()
	t.Cleanup(func() {
		h.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	m, id := newHash(t, ebpf.Hash, 8, 16, 100)
	h.watch(t, id, 8, 16)
	c := startControl(t, m)
	i := 0
	for operation, call := range failingCalls {
		if operation == "lookup-and-delete-into-no-memory" && !kernelAtLeast(5, 14) {
			continue
		}
		i++
		c.do(t, "update", i, 1, 1)
		poll.Eventually(t, "event of the update", func() bool { return h.recorded(id) == 1 })
		h.take(id)
		before := h.Stats()
		c.do(t, operation, i, 1, 0)
		c.do(t, "update", 90, 1, 1) // a later event
		poll.Eventually(t, "events of "+operation, func() bool { return h.recorded(id) == call.keys+1 })
		if got := h.take(id); call.keys == 1 && got[0].Key != string(firstOf(entry(8, 16, i, 0))) {
			t.Errorf("%s: got key %x, want that of entry %d", operation, got[0].Key, i)
		}
		if n := h.Stats().LostReservations - before.LostReservations; n != 0 {
			t.Errorf("%s: got %d losses, want 0", operation, n)
		}
	}
}
