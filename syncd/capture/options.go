package capture

import (
	"errors"
	"fmt"
	"log/slog"
	"math/bits"
	"os"

	"github.com/cilium/ebpf"
)

// Attach is the way in which the hooks attach to the kernel's functions.
type Attach string

// The ways to attach. Auto takes fexit where it loads and kprobe elsewhere. None
// attaches and loads nothing, and needs no privilege for hooks: events come only from
// programs that share the capture's maps, and all other changes are for a scan to find.
const (
	AttachAuto   Attach = "auto"
	AttachFexit  Attach = "fexit"
	AttachKprobe Attach = "kprobe"
	AttachNone   Attach = "none"
)

// ParseAttach reads the value of the --attach flag.
func ParseAttach(s string) (Attach, error) {
	switch a := Attach(s); a {
	case AttachAuto, AttachFexit, AttachKprobe, AttachNone:
		return a, nil
	}
	return "", fmt.Errorf("attach %q is unknown: choose auto, fexit, kprobe or none", s)
}

// Buffer is the kind of buffer that carries events to user space.
type Buffer string

// The kinds of buffer. A ring is shared by all CPUs and keeps their order; perf
// is one buffer a CPU, for kernels and policies that want it.
const (
	BufferRing Buffer = "ring"
	BufferPerf Buffer = "perf"
)

// ParseBuffer reads the value of the --buffer flag.
func ParseBuffer(s string) (Buffer, error) {
	switch b := Buffer(s); b {
	case BufferRing, BufferPerf:
		return b, nil
	}
	return "", fmt.Errorf("buffer %q is unknown: choose ring or perf", s)
}

// Sizes of the buffers when none is configured: bytes of a ring, pages a CPU of perf.
const (
	DefaultRingBytes = 16 << 20
	DefaultPerfPages = 1024
)

// Limits of a buffer: a ring's length is a 32-bit number, and no machine needs more pages a CPU.
const (
	minRingBytes = 4 << 10
	maxRingBytes = 1 << 30
	maxPerfPages = 1 << 18
)

// Limits of a watched map's entries, in bytes, and of the number of maps: those of
// bpf/event.h. Where events carry the key alone, that of values does not matter.
const (
	MaxKeySize   = 512
	MaxValueSize = 4096
	MaxMaps      = 64
)

// ErrEntryTooLarge says that a map's keys or values exceed what an event carries.
var ErrEntryTooLarge = errors.New("entries too large to be watched")

// Options configures a Capture.
type Options struct {
	Attach Attach
	Buffer Buffer
	// BufferSize is in bytes for a ring and in pages a CPU for perf, a power of
	// two in both; 0 takes the default.
	BufferSize int
	// OwnWriter is the per-CPU map in which the daemon's writing program marks
	// its own writes. It stays the caller's.
	OwnWriter *ebpf.Map
	// WallOffset is what turns the kernel's monotonic time into wall time, in ns.
	WallOffset int64
	// EmitOwn has the daemon's own writes reported too, for tests of who wrote.
	EmitOwn bool
	Logger  *slog.Logger
}

func (o *Options) validate() error {
	if o.Buffer != BufferRing && o.Buffer != BufferPerf {
		return fmt.Errorf("buffer %q is unknown: choose ring or perf", o.Buffer)
	}
	if o.BufferSize == 0 {
		o.BufferSize = DefaultRingBytes
		if o.Buffer == BufferPerf {
			o.BufferSize = DefaultPerfPages
		}
	}
	return CheckBufferSize(o.Buffer, o.BufferSize)
}

// MinBufferSize returns the smallest size of a buffer: bytes of a ring, pages a CPU of perf.
func MinBufferSize(b Buffer) int {
	if b == BufferPerf {
		return 1
	}
	return max(minRingBytes, os.Getpagesize())
}

// CheckBufferSize says what is wrong with a buffer's size: bytes of a ring, pages
// a CPU of perf.
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

// bufferBytes returns the bytes of events that a buffer holds: the ring, or that of
// one CPU.
func (o *Options) bufferBytes() int {
	if o.Buffer == BufferPerf {
		return o.BufferSize * os.Getpagesize()
	}
	return o.BufferSize
}

// BufferMemory returns the bytes of memory that a buffer costs with cpus possible CPUs.
func BufferMemory(b Buffer, size, cpus int) uint64 {
	page := uint64(os.Getpagesize())
	if b == BufferPerf {
		return uint64(cpus) * (uint64(size) + 1) * page
	}
	return uint64(size) + 3*page
}
