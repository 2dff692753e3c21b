package capture

import (
	"errors"
	"fmt"
	"log/slog"
	"math/bits"
	"os"
	"time"

	"github.com/cilium/ebpf"
)

// Attach is the method by which hooks attach to the kernel's functions.
type Attach string

// The attach methods. AttachAuto uses fexit if it is available and kprobe otherwise.
//
// AttachSyscall hooks no map function. A program at the tracepoint sys_exit reports the bpf(2) writes
// of other processes. It delays each system call on the host. A scan finds the writes of programs.
//
// AttachNone loads and attaches no hooks and needs no privileges for them. Events then come only from
// programs that share the capture's maps, and a scan finds all other changes.
const (
	AttachAuto    Attach = "auto"
	AttachFexit   Attach = "fexit"
	AttachKprobe  Attach = "kprobe"
	AttachSyscall Attach = "syscall"
	AttachNone    Attach = "none"
)

// Buffer is the kind of buffer that transfers events to user space.
type Buffer string

// The kinds of buffer. A ring buffer is shared by all CPUs and keeps their order. A perf buffer is
// one buffer per CPU, for kernels and policies that require it.
const (
	BufferRing Buffer = "ring"
	BufferPerf Buffer = "perf"
)

// Default buffer sizes: bytes of a ring buffer, pages per CPU of a perf buffer. The kernel creates a ring buffer in one call,
// which takes less than 1 ms at this size.
const (
	DefaultRingBytes = 4 << 20
	DefaultPerfPages = 1024
)

// Limits of the buffer size. The length of a ring buffer is a 32-bit number. The limit of a perf
// buffer is above the needs of any machine.
const (
	minRingBytes = 4 << 10
	maxRingBytes = 1 << 30
	maxPerfPages = 1 << 18
)

// Limits of a watched map's keys and values in bytes, and of the number of maps, as in bpf/event.h.
// The limit of values does not apply if events carry only the key.
const (
	MaxKeySize   = 512
	MaxValueSize = 4096
	MaxMaps      = 1024
)

// ErrEntryTooLarge is returned if a map's keys or values exceed the size that an event can carry.
var ErrEntryTooLarge = errors.New("entries too large to be watched")

// Options configures a Capture.
type Options struct {
	Attach Attach
	Buffer Buffer
	// BufferSize is the size of the buffer: bytes of a ring buffer, pages per CPU of a perf buffer.
	// It is a power of two. 0 selects the default.
	BufferSize int
	// OwnWriteMarks is the per-CPU map in which syncd's writing programs mark their writes. The
	// caller owns it.
	OwnWriteMarks *ebpf.Map
	// WallOffset is the difference between wall time and the kernel's monotonic time, in ns.
	WallOffset int64
	// Lookups attaches the hook on lookups, for WatchLookups, if the attach method is fexit. Each lookup in
	// a hash map on the host then takes longer.
	Lookups bool
	// Uses attaches the same hook, for WatchUses. The array of uses takes 8 MiB.
	Uses bool
	// Tick is the length of a jiffy, see [kmap.TickLength]. It must be above 0 with Lookups or Uses.
	Tick time.Duration
	// EmitOwn reports syncd's own writes and lookups too, for tests of the write context.
	EmitOwn bool
	// MeasureRing runs the call that creates a ring buffer. Nil: without a measurement.
	MeasureRing func(create func())
	Logger      *slog.Logger
}

func (o *Options) validate() error {
	if o.Buffer != BufferRing && o.Buffer != BufferPerf {
		return fmt.Errorf("buffer %q is unknown: choose ring or perf", o.Buffer)
	}
	if o.hooksLookups() && o.Tick <= 0 {
		return errors.New("the hook on lookups needs the length of a jiffy")
	}
	if o.MeasureRing == nil {
		o.MeasureRing = func(create func()) { create() }
	}
	if o.BufferSize == 0 {
		o.BufferSize = DefaultRingBytes
		if o.Buffer == BufferPerf {
			o.BufferSize = DefaultPerfPages
		}
	}
	return CheckBufferSize(o.Buffer, o.BufferSize)
}

// hooksLookups reports whether the hook on lookups is necessary.
func (o *Options) hooksLookups() bool { return o.Lookups || o.Uses }

// MinBufferSize returns the minimum buffer size: bytes of a ring buffer, pages per CPU of a perf
// buffer.
func MinBufferSize(b Buffer) int {
	if b == BufferPerf {
		return 1
	}
	return max(minRingBytes, os.Getpagesize())
}

// CheckBufferSize returns an error if size is invalid for the buffer: bytes of a ring buffer, pages
// per CPU of a perf buffer.
func CheckBufferSize(b Buffer, size int) error {
	lowest, highest, unit := MinBufferSize(b), maxRingBytes, "bytes"
	if b == BufferPerf {
		highest, unit = maxPerfPages, "pages a CPU"
	}
	if size >= lowest && size <= highest && bits.OnesCount(uint(size)) == 1 {
		return nil
	}
	return fmt.Errorf("buffer size %d is not usable for %s: give a power of two from %d to %d %s",
		size, b, lowest, highest, unit)
}

// bufferBytes returns the capacity of the buffer in bytes: of the ring buffer, or of the perf
// buffer of one CPU.
func (o *Options) bufferBytes() int {
	if o.Buffer == BufferPerf {
		return o.BufferSize * os.Getpagesize()
	}
	return o.BufferSize
}

// BufferMemory returns the memory in bytes that a buffer uses with cpus possible CPUs.
func BufferMemory(b Buffer, size, cpus int) uint64 {
	page := uint64(os.Getpagesize())
	if b == BufferPerf {
		return uint64(cpus) * (uint64(size) + 1) * page
	}
	return uint64(size) + 3*page
}
