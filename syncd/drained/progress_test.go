package drained_test

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"mapsync/bpf"
	"mapsync/internal/poll"
	"mapsync/syncd/drained"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Requests of userfaultfd, from include/uapi/linux/userfaultfd.h.
const (
	uffdioAPI      = 0xc018aa3f
	uffdioRegister = 0xc020aa00
	uffdioZeroPage = 0xc020aa04
	uffdMissing    = 1 // UFFDIO_REGISTER_MODE_MISSING
	uffdVersion    = 0xaa
)

// absentPage is a page of memory. A process that accesses it waits until present is called.
type absentPage struct {
	memory []byte
	fd     int
}

func newAbsentPage(t *testing.T) absentPage {
	t.Helper()
	memory, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC, 0, 0)
	if errno == unix.ENOSYS || errno == unix.EPERM {
		t.Skipf("this kernel refuses userfaultfd: %v", errno)
	}
	p := absentPage{memory, int(fd)}
	t.Cleanup(func() {
		unix.Close(p.fd)
		if err := unix.Munmap(memory); err != nil {
			t.Error(err)
		}
	})
	p.request(t, uffdioAPI, &[4]uint64{uffdVersion})
	p.request(t, uffdioRegister, &[4]uint64{p.address(), uint64(len(memory)), uffdMissing})
	return p
}

func (p absentPage) address() uint64 { return uint64(uintptr(unsafe.Pointer(&p.memory[0]))) }

func (p absentPage) request(t *testing.T, request uintptr, argument *[4]uint64) {
	t.Helper()
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(p.fd), request, uintptr(unsafe.Pointer(argument))); errno != 0 {
		t.Fatalf("userfaultfd request %#x: %v", request, errno)
	}
}

// accessed reports whether a process waits for the page.
func (p absentPage) accessed() bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}}, 0)
	return n > 0 && err == nil
}

func (p absentPage) present(t *testing.T) {
	t.Helper()
	p.request(t, uffdioZeroPage, &[4]uint64{p.address(), uint64(len(p.memory))})
}

// drainOneInto removes an entry by batch lookup-and-delete. The kernel copies its value to values.
func drainOneInto(m *ebpf.Map, values []byte) unix.Errno {
	var cursor, keys [keySize]byte
	var pins runtime.Pinner
	defer pins.Unpin()
	pins.Pin(&cursor)
	pins.Pin(&keys)
	attributes := struct {
		in, out, keys, values uint64
		count, fd             uint32
		elemFlags, flags      uint64
	}{
		out: uint64(uintptr(unsafe.Pointer(&cursor))), keys: uint64(uintptr(unsafe.Pointer(&keys))),
		values: uint64(uintptr(unsafe.Pointer(&values[0]))), count: 1, fd: uint32(m.FD()),
	}
	_, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_MAP_LOOKUP_AND_DELETE_BATCH, uintptr(unsafe.Pointer(&attributes)), unsafe.Sizeof(attributes))
	return errno
}

// TestCallsInProgressAreAdded replaces the programs while the kernel copies the entries of a call to the collector: only the
// former programs see the end of that call. Its entries are in the sums, or the call counts as missed.
func TestCallsInProgressAreAdded(t *testing.T) {
	eachMethod(t, func(t *testing.T, method drained.Method) {
		page := newAbsentPage(t)
		o := options(filepath.Join(mountBPF(t), "flows"))
		o.Methods = []drained.Method{method}
		m, id := newMap(t, ebpf.Hash)
		s := openSums(t, o)
		s.Follow(id)
		if method == drained.ByKprobe && !kprobesArePinned(t, o.Folder) {
			t.Skip("nothing adds without syncd on this kernel")
		}
		put(t, m, 1, value(1, 2, 3))
		drainedOne := make(chan unix.Errno, 1)
		go func() { drainedOne <- drainOneInto(m, page.memory) }()
		poll.Eventually(t, "the kernel waits for the collector's memory", page.accessed)

		closeSums(t, s)
		changeState(t, o.Folder, func(st *bpf.DrainDrainState) { st.Version++ })
		type opened struct {
			s   *drained.Sums
			err error
		}
		next := make(chan opened, 1)
		go func() {
			s, err := drained.Open(o)
			next <- opened{s, err}
		}()
		poll.Stays(t, 3*time.Second, "Open waits for the call that former programs end", func() bool { return len(next) == 0 })
		page.present(t)
		if errno := <-drainedOne; errno != 0 && errno != unix.ENOENT {
			t.Errorf("batch lookup-and-delete: got %v, want success or ENOENT", errno)
		}
		got := <-next
		if got.err != nil {
			t.Fatal(got.err)
		}
		defer closeSums(t, got.s)
		if st := got.s.Stats(); method == drained.ByFexit && st == (drained.Stats{Missed: 1}) {
			return // the kernel runs no fexit program of a call in progress after it has attached another one
		} else if st != (drained.Stats{Entries: 1}) {
			t.Errorf("stats: got %+v, want one entry, nothing missing", st)
		}
		if sum := sum(t, got.s, 1); sum != "packets 1, flags 2, bytes 3" {
			t.Errorf("sum: got %s, want packets 1, flags 2, bytes 3", sum)
		}
	})
}
