package kmap

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// Jiffies relates the kernel's tick counter to its monotonic clock. The kernel derives the ticks
// from that clock, so the two do not drift apart.
type Jiffies struct {
	// Count is the value of bpf_jiffies64 from the time At on.
	Count uint64
	// At is a time of CLOCK_MONOTONIC in nanoseconds.
	At int64
	// Tick is the length of a jiffy in nanoseconds.
	Tick int64
}

// measuredEdges is the number of increments of the counter that a measurement observes. A busy kernel
// increments it late, and a busy process detects that late.
const measuredEdges = 6

// MeasureJiffies observes the tick counter for a few ticks. It needs a kernel with bpf_jiffies64 (5.6).
func MeasureJiffies() (_ *Jiffies, err error) {
	r, err := newTickReader()
	if err != nil {
		return nil, fmt.Errorf("measure jiffies: %w", err)
	}
	defer r.close()
	tick, err := TickLength()
	if err != nil {
		return nil, fmt.Errorf("measure jiffies: %w", err)
	}
	edges, err := r.edges(measuredEdges)
	if err != nil {
		return nil, fmt.Errorf("measure jiffies: %w", err)
	}
	return earliestEdge(edges, tick.Nanoseconds()), nil
}

// TickLength returns the length of a jiffy. The kernel reports it as the resolution of its coarse clocks, which
// advance with each tick (posix_get_coarse_res in kernel/time/posix-timers.c).
func TickLength() (time.Duration, error) {
	var ts unix.Timespec
	if err := unix.ClockGetres(unix.CLOCK_MONOTONIC_COARSE, &ts); err != nil {
		return 0, fmt.Errorf("read the resolution of CLOCK_MONOTONIC_COARSE: %w", err)
	}
	if ts.Nano() <= 0 {
		return 0, fmt.Errorf("the resolution of CLOCK_MONOTONIC_COARSE is %d ns", ts.Nano())
	}
	return time.Duration(ts.Nano()), nil
}

// earliestEdge returns the edge that was detected with the least delay. The counter is never ahead of the
// clock, so no edge is before a line whose slope is the tick length.
func earliestEdge(edges []Jiffies, tick int64) *Jiffies {
	atZero := func(e Jiffies) int64 { return e.At - int64(e.Count-edges[0].Count)*tick }
	best := slices.MinFunc(edges, func(a, b Jiffies) int { return cmp.Compare(atZero(a), atZero(b)) })
	best.Tick = tick
	return &best
}

// tickReader is a program that reads both clocks in one run.
type tickReader struct {
	out  *ebpf.Map
	prog *ebpf.Program
}

func newTickReader() (*tickReader, error) {
	out, err := ebpf.NewMap(&ebpf.MapSpec{Name: "mapsync_ticks", Type: ebpf.Array, KeySize: 4, ValueSize: 16, MaxEntries: 1})
	if err != nil {
		return nil, err
	}
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "mapsync_ticks", Type: ebpf.CGroupSKB, License: "Dual BSD/GPL",
		Instructions: asm.Instructions{
			asm.FnJiffies64.Call(),
			asm.StoreMem(asm.RFP, -16, asm.R0, asm.DWord),
			asm.FnKtimeGetNs.Call(),
			asm.StoreMem(asm.RFP, -8, asm.R0, asm.DWord),
			asm.StoreImm(asm.RFP, -20, 0, asm.Word),
			asm.LoadMapPtr(asm.R1, out.FD()),
			asm.Mov.Reg(asm.R2, asm.RFP),
			asm.Add.Imm(asm.R2, -20),
			asm.Mov.Reg(asm.R3, asm.RFP),
			asm.Add.Imm(asm.R3, -16),
			asm.Mov.Imm(asm.R4, 0),
			asm.FnMapUpdateElem.Call(),
			asm.Mov.Imm(asm.R0, 0),
			asm.Return(),
		},
	})
	if err != nil {
		release(out)
		return nil, err
	}
	return &tickReader{out, prog}, nil
}

func (r *tickReader) close() {
	release(r.prog)
	release(r.out)
}

func (r *tickReader) read() (*Jiffies, error) {
	for {
		err := testRun(r.prog.FD(), 1)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) {
			return nil, fmt.Errorf("run program: %w", err)
		}
	}
	var out [2]uint64
	if err := r.out.Lookup(uint32(0), &out); err != nil {
		return nil, fmt.Errorf("read the program's output: %w", err)
	}
	return &Jiffies{Count: out[0], At: int64(out[1])}, nil
}

// edges waits for n increments of the counter and returns them with the times of their detection.
func (r *tickReader) edges(n int) ([]Jiffies, error) {
	last, err := r.read()
	if err != nil {
		return nil, err
	}
	var edges []Jiffies
	for end := time.Now().Add(3 * time.Second); len(edges) < n; {
		now, err := r.read()
		if err != nil {
			return nil, err
		}
		if now.Count != last.Count {
			edges = append(edges, *now)
		} else if time.Now().After(end) {
			return nil, errors.New("the counter stands still")
		}
		last = now
	}
	return edges, nil
}
