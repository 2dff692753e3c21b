package kmap

import (
	"bytes"
	"fmt"
	"io"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Commands of bpf(2) that are called directly: a test run because a library's
// answer to EINTR is to start all over, the info for fields it leaves out, and
// entries because the library wants a Go type for each value, and of each CPU.
const (
	cmdMapLookupElem  = 1
	cmdMapUpdateElem  = 2
	cmdMapDeleteElem  = 3
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

// packet is what the programs are run on: the smallest that every kernel takes
// (bpf_prog_test_run_skb wants an Ethernet header and a payload). None looks at it.
var packet [64]byte

// testRun runs the program up to repeat times in one call. It returns EINTR when a
// signal ended it early, after one run at least.
func testRun(progFD int, repeat uint32) error {
	attr := testRunAttr{
		progFD:     uint32(progFD),
		dataIn:     unsafe.Pointer(&packet),
		dataSizeIn: uint32(len(packet)),
		repeat:     repeat,
	}
	_, _, errno := unix.Syscall(unix.SYS_BPF, cmdProgTestRun, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	if errno != 0 {
		return errno
	}
	return nil
}

// mapInfo is struct bpf_map_info up to what is needed here.
type mapInfo struct {
	typ, id, keySize, valueSize, maxEntries, flags uint32
	name                                           [16]byte
	ifindex, btfVmlinuxID                          uint32
	netnsDev, netnsIno                             uint64
	btfID, btfKeyID, btfValueID, _                 uint32
}

// infoOf reads the kernel's description of the map behind fd.
func infoOf(fd int) (*mapInfo, error) {
	var info mapInfo
	attr := struct {
		fd, length uint32
		info       unsafe.Pointer // not a number: the stack that info is on may move
	}{uint32(fd), uint32(unsafe.Sizeof(info)), unsafe.Pointer(&info)}
	_, _, errno := unix.Syscall(unix.SYS_BPF, cmdObjGetInfoFD, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	runtime.KeepAlive(&info)
	if errno != 0 {
		return nil, fmt.Errorf("read map info: %w", errno)
	}
	return &info, nil
}

// release closes a descriptor through which nothing can be lost.
func release(c io.Closer) { _ = c.Close() }

func (i *mapInfo) nameString() string {
	name, _, _ := bytes.Cut(i.name[:], []byte{0})
	return string(name)
}

// mapElem makes a call for one entry. value takes what a lookup finds, and is nil
// for a delete. An error is a [unix.Errno].
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
	_, _, errno := unix.Syscall(unix.SYS_BPF, cmd, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
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
	in, out      []byte // places in the map, of lookups
}

// mapBatch makes one call, and returns how many entries it handled. With an error
// that is the place of the entry that failed, or 0.
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
	_, _, errno := unix.Syscall(unix.SYS_BPF, cmd, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	switch {
	case errno == 0:
		return int(attr.count), nil
	case errno != unix.ENOENT && int(attr.count) >= a.count:
		return 0, errno // refused before the first entry: the count was not touched
	}
	return int(attr.count), errno
}
