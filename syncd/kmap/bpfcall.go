package kmap

import (
	"bytes"
	"fmt"
	"io"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Commands of bpf(2) that this package calls directly. The library restarts a test run from the
// beginning after EINTR. It omits some fields of the map info. It requires a Go type for each
// value, and for the value of each CPU.
const (
	cmdMapLookupElem  = 1
	cmdMapUpdateElem  = 2
	cmdMapDeleteElem  = 3
	cmdMapGetNextKey  = 4
	cmdProgTestRun    = 10
	cmdObjGetInfoFD   = 15
	cmdMapLookupBatch = 24
	cmdMapUpdateBatch = 26
	cmdMapDeleteBatch = 27
)

// testRunAttr is the part of union bpf_attr that BPF_PROG_TEST_RUN reads.
type testRunAttr struct {
	progFD, retval           uint32
	dataSizeIn, dataSizeOut  uint32
	dataIn                   unsafe.Pointer
	dataOut                  uint64
	repeat, duration         uint32
	ctxSizeIn, ctxSizeOut    uint32
	ctxIn, ctxOut            uint64
	flags, cpu, batchSize, _ uint32
}

// packet is the input of the programs: the smallest packet that every kernel accepts
// (bpf_prog_test_run_skb requires an Ethernet header and a payload). The programs do not read it.
var packet [64]byte

// testRun runs the program up to repeat times in one call. It returns EINTR if a signal ended the
// call early, after at least one run.
func testRun(progFD int, repeat uint32) error {
	attr := testRunAttr{
		progFD:     uint32(progFD),
		dataIn:     unsafe.Pointer(&packet),
		dataSizeIn: uint32(len(packet)),
		repeat:     repeat,
	}
	start := startCall()
	_, _, errno := unix.Syscall(unix.SYS_BPF, cmdProgTestRun, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	CallProgram.ended(start)
	if errno != 0 {
		return errno
	}
	return nil
}

// mapInfo is the part of struct bpf_map_info that this package uses.
type mapInfo struct {
	typ, id, keySize, valueSize, maxEntries, flags uint32
	name                                           [16]byte
	ifindex, btfVmlinuxID                          uint32
	netnsDev, netnsIno                             uint64
	btfID, btfKeyID, btfValueID, _                 uint32
}

// infoOf reads the kernel's description of the map with descriptor fd.
func infoOf(fd int) (*mapInfo, error) {
	var info mapInfo
	attr := struct {
		fd, length uint32
		info       unsafe.Pointer // a pointer, because the stack that contains info may move
	}{uint32(fd), uint32(unsafe.Sizeof(info)), unsafe.Pointer(&info)}
	_, _, errno := unix.Syscall(unix.SYS_BPF, cmdObjGetInfoFD, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	runtime.KeepAlive(&info)
	if errno != 0 {
		return nil, fmt.Errorf("read map info: %w", errno)
	}
	return &info, nil
}

// release closes a descriptor whose close error is irrelevant.
func release(c io.Closer) { _ = c.Close() }

func (i *mapInfo) nameString() string {
	name, _, _ := bytes.Cut(i.name[:], []byte{0})
	return string(name)
}

// mapElem makes a bpf(2) call for one entry. value receives the result of a lookup or the next key, and is nil for
// a delete. Errors are a [unix.Errno].
func mapElem(cmd uintptr, mapFD int, key, value []byte, flags uint64) error {
	attr := struct {
		mapFD, _   uint32
		key, value unsafe.Pointer
		flags      uint64
	}{
		mapFD: uint32(mapFD),
		key:   unsafe.Pointer(unsafe.SliceData(key)), value: unsafe.Pointer(unsafe.SliceData(value)),
		flags: flags,
	}
	start := startCall()
	_, _, errno := unix.Syscall(unix.SYS_BPF, cmd, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	CallElement.ended(start)
	if errno != 0 {
		return errno
	}
	return nil
}

// batchArgs are the arguments of a bpf(2) call for many entries.
type batchArgs struct {
	keys, values []byte
	count        int
	elemFlags    uint64
	in, out      []byte // cursors of lookups in the map
}

// mapBatch makes one call and returns the number of entries that it handled. With an error, that
// number is the index of the failed entry, or 0. A lookup that ends at a locked bucket has handled the entries
// before it: the kernel sets the count to 0 first.
func mapBatch(cmd uintptr, mapFD int, a batchArgs) (int, error) {
	attr := struct {
		in, out, keys, values unsafe.Pointer
		count, mapFD          uint32
		elemFlags, flags      uint64
	}{
		in: unsafe.Pointer(unsafe.SliceData(a.in)), out: unsafe.Pointer(unsafe.SliceData(a.out)),
		keys: unsafe.Pointer(unsafe.SliceData(a.keys)), values: unsafe.Pointer(unsafe.SliceData(a.values)),
		count: uint32(a.count), mapFD: uint32(mapFD), elemFlags: a.elemFlags,
	}
	start := startCall()
	_, _, errno := unix.Syscall(unix.SYS_BPF, cmd, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	CallBatch.ended(start)
	switch {
	case errno == 0:
		return int(attr.count), nil
	case cmd == cmdMapLookupBatch && LockedBucket(errno):
		return int(attr.count), errno
	case errno != unix.ENOENT && int(attr.count) >= a.count:
		return 0, errno // refused before the first entry: the kernel did not change the count
	}
	return int(attr.count), errno
}
