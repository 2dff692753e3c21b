package capture_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
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
	// keys is the number of keys that are reported, and losses that of the losses.
	keys, losses int
}{
	"call-without-attributes": {func(uint32, unsafe.Pointer) unix.Errno {
		return bpfCall(unix.BPF_MAP_UPDATE_BATCH, nil, 0)
	}, unix.EINVAL, 0, 0},
	"call-with-a-closed-descriptor": {func(_ uint32, key unsafe.Pointer) unix.Errno {
		a := entryAttributes{fd: 1 << 20, key: key, value: key}
		return bpfCall(unix.BPF_MAP_UPDATE_ELEM, unsafe.Pointer(&a), unsafe.Sizeof(a))
	}, unix.EBADF, 0, 0},
	"lookup-and-delete-into-no-memory": {func(fd uint32, key unsafe.Pointer) unix.Errno {
		a := entryAttributes{fd: fd, key: key}
		return bpfCall(unix.BPF_MAP_LOOKUP_AND_DELETE_ELEM, unsafe.Pointer(&a), unsafe.Sizeof(a))
	}, unix.EFAULT, 1, 0},
	"delete-whose-attributes-end-with-the-key": {deleteByShortAttributes, 0, 1, 0},
	"batch-of-no-keys": {func(fd uint32, _ unsafe.Pointer) unix.Errno {
		a := batchAttributes{fd: fd}
		return bpfCall(unix.BPF_MAP_DELETE_BATCH, unsafe.Pointer(&a), unsafe.Sizeof(a))
	}, 0, 0, 0},
	"drain-into-no-memory": {func(fd uint32, key unsafe.Pointer) unix.Errno {
		out := new([8]byte)
		a := batchAttributes{fd: fd, out: unsafe.Pointer(out), keys: key, count: 100}
		return bpfCall(unix.BPF_MAP_LOOKUP_AND_DELETE_BATCH, unsafe.Pointer(&a), unsafe.Sizeof(a))
	}, unix.EFAULT, 0, 1},
	"batch-with-unknown-flags": {func(fd uint32, key unsafe.Pointer) unix.Errno {
		a := batchAttributes{fd: fd, keys: key, values: key, count: 1 << 31, elemFlags: 1 << 20}
		return bpfCall(unix.BPF_MAP_UPDATE_BATCH, unsafe.Pointer(&a), unsafe.Sizeof(a))
	}, unix.EINVAL, 0, 0},
	"batch-by-a-read-only-descriptor":            {batchByReadOnlyDescriptor, unix.EPERM, 0, 0},
	"batch-whose-descriptor-is-closed-meanwhile": {batchWithClosedDescriptor, 0, 0, 1},
	"batch-that-ends-at-an-absent-key": {func(fd uint32, key unsafe.Pointer) unix.Errno {
		keys := [2][8]byte{*(*[8]byte)(key), {0xff}}
		a := batchAttributes{fd: fd, keys: unsafe.Pointer(&keys), count: 2}
		err := bpfCall(unix.BPF_MAP_DELETE_BATCH, unsafe.Pointer(&a), unsafe.Sizeof(a))
		runtime.KeepAlive(&keys)
		return err
	}, unix.ENOENT, 1, 0},
}

// entryAttributes and batchAttributes are the attributes of bpf(2) for one entry and for a batch.
type entryAttributes struct {
	fd         uint32
	_          uint32
	key, value unsafe.Pointer
	flags      uint64
}

type batchAttributes struct {
	in, out      unsafe.Pointer
	keys, values unsafe.Pointer
	count, fd    uint32
	elemFlags    uint64
	flags        uint64
}

// deleteByShortAttributes deletes by attributes that end with the key, in front of memory that cannot be read.
func deleteByShortAttributes(fd uint32, key unsafe.Pointer) unix.Errno {
	page := os.Getpagesize()
	memory, err := unix.Mmap(-1, 0, 2*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return unix.ENOMEM
	}
	defer unix.Munmap(memory)
	if err := unix.Mprotect(memory[page:], unix.PROT_NONE); err != nil {
		return unix.ENOMEM
	}
	attributes := memory[page-16 : page]
	binary.NativeEndian.PutUint32(attributes, fd)
	binary.NativeEndian.PutUint64(attributes[8:], uint64(uintptr(key)))
	defer runtime.KeepAlive(key)
	return bpfCall(unix.BPF_MAP_DELETE_ELEM, unsafe.Pointer(&attributes[0]), 16)
}

// batchByReadOnlyDescriptor deletes by a descriptor that is opened for reading.
func batchByReadOnlyDescriptor(fd uint32, key unsafe.Pointer) unix.Errno {
	var info [10]uint32 // the beginning of struct bpf_map_info: type, id
	get := struct {
		fd, size uint32
		info     unsafe.Pointer
	}{fd, uint32(unsafe.Sizeof(info)), unsafe.Pointer(&info)}
	if err := bpfCall(unix.BPF_OBJ_GET_INFO_BY_FD, unsafe.Pointer(&get), unsafe.Sizeof(get)); err != 0 {
		return err
	}
	open := struct{ id, next, flags uint32 }{info[1], 0, unix.BPF_F_RDONLY}
	readOnly, _, err := unix.Syscall(unix.SYS_BPF, unix.BPF_MAP_GET_FD_BY_ID, uintptr(unsafe.Pointer(&open)), unsafe.Sizeof(open))
	if err != 0 {
		return err
	}
	defer unix.Close(int(readOnly))
	a := batchAttributes{fd: uint32(readOnly), keys: key, values: key, count: 1}
	return bpfCall(unix.BPF_MAP_DELETE_BATCH, unsafe.Pointer(&a), unsafe.Sizeof(a))
}

// batchWithClosedDescriptor stores the same entry many times. Its descriptor is closed as soon as the first
// write is done, so that the map is unknown when the call returns.
func batchWithClosedDescriptor(fd uint32, key unsafe.Pointer) unix.Errno {
	const n = 500_000
	closed, err := unix.Dup(int(fd))
	if err != nil {
		return unix.EMFILE
	}
	keys, values := bytes.Repeat((*[8]byte)(key)[:], n), make([]byte, 16*n)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer unix.Close(closed)
		for value := new([16]byte); ; {
			a := entryAttributes{fd: fd, key: key, value: unsafe.Pointer(value)}
			err := bpfCall(unix.BPF_MAP_LOOKUP_ELEM, unsafe.Pointer(&a), unsafe.Sizeof(a))
			if err != 0 || *value == [16]byte{} {
				return
			}
		}
	}()
	a := batchAttributes{fd: uint32(closed), keys: unsafe.Pointer(&keys[0]), values: unsafe.Pointer(&values[0]), count: n}
	errno := bpfCall(unix.BPF_MAP_UPDATE_BATCH, unsafe.Pointer(&a), unsafe.Sizeof(a))
	<-done
	return errno
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
	h := openSyscall(t, capture.BufferRing)
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
		if n := h.Stats().LostReservations - before.LostReservations; n != uint64(call.losses) {
			t.Errorf("%s: got %d losses, want %d", operation, n, call.losses)
		}
	}
}

// TestLargeCall checks that the keys of one call are reported up to 1 MiB, that more of them count as a loss,
// and that the calls of this process, which counts as syncd, are not reported.
func TestLargeCall(t *testing.T) {
	skipEmulated(t)
	for _, buffer := range []capture.Buffer{capture.BufferRing, capture.BufferPerf} {
		t.Run(string(buffer), func(t *testing.T) {
			h := openSyscall(t, buffer)
			m, id := newHash(t, ebpf.Hash, 8, 16, 200_000)
			h.watch(t, id, 8, 16)
			if err := operate(m, "batch-update", 0, 10, 1); err != nil {
				t.Fatal(err)
			}
			const reported = 1 << 20 / 8
			startControl(t, m).do(t, "batch-update", 0, reported+4096/8, 2)
			poll.Eventually(t, "events of the call", func() bool { return h.recorded(id) >= reported })
			keys := map[string]bool{}
			for _, c := range h.take(id) {
				keys[c.Key] = true
			}
			if s := h.Stats(); len(keys) != reported || s.LostReservations != 1 || s.Events != reported {
				t.Errorf("call with 1 MiB and 4 KiB of keys: got %d keys, stats %+v, want %d keys and a loss", len(keys), s, reported)
			}
		})
	}
}
