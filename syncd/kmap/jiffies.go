package kmap

import (
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// Jiffies says how the kernel's tick counter relates to its monotonic clock. The two
// do not drift apart: the kernel derives ticks from that clock.
type Jiffies struct {
	// Count is the value of bpf_jiffies64 that began at At.
	Count uint64
	// At is in nanoseconds of CLOCK_MONOTONIC.
	At int64
	// Tick is the length of a jiffy in nanoseconds.
	Tick int64
}

// tickRates are the values that CONFIG_HZ can have on the usual architectures.
var tickRates = []int64{100, 250, 300, 1000}

// MeasureJiffies watches the tick counter for about a twentieth of a second. It needs
// a kernel with bpf_jiffies64 (5.6).
func MeasureJiffies() (_ *Jiffies, err error) {
	r, err := newTickReader()
	if err != nil {
		return nil, fmt.Errorf("measure jiffies: %w", err)
	}
	defer r.close()
	first, err := r.edge()
	if err != nil {
		return nil, fmt.Errorf("measure jiffies: %w", err)
	}
	time.Sleep(50 * time.Millisecond)
	last, err := r.edge()
	if err != nil {
		return nil, fmt.Errorf("measure jiffies: %w", err)
	}
	ticks := int64(last.Count - first.Count)
	if ticks <= 0 {
		return nil, errors.New("measure jiffies: the counter stands still")
	}
	last.Tick = nearestTick((last.At - first.At) / ticks)
	return last, nil
}

// nearestTick returns the length of a tick, of those there are, that is nearest to a measured one.
func nearestTick(measured int64) int64 {
	best := int64(time.Second) / tickRates[0]
	for _, hz := range tickRates {
		if tick := int64(time.Second) / hz; max(tick-measured, measured-tick) < max(best-measured, measured-best) {
			best = tick
		}
	}
	return best
}

// tickReader is a program that reads both clocks in one go.
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

// edge waits for the counter's next step and returns the moment of it. On a busy
// machine the step may be seen late, so the best of a few is taken.
func (r *tickReader) edge() (*Jiffies, error) {
	var best *Jiffies
	narrowest := int64(time.Second)
	for range 3 {
		last, err := r.read()
		if err != nil {
			return nil, err
		}
		for end := time.Now().Add(time.Second); time.Now().Before(end); {
			now, err := r.read()
			if err != nil {
				return nil, err
			}
			if now.Count != last.Count {
				if width := now.At - last.At; width < narrowest {
					narrowest, best = width, now
				}
				break
			}
			last = now
		}
	}
	if best == nil {
		return nil, errors.New("the counter stands still")
	}
	return best, nil
}
