package capture_test

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"testing"

	"mapsync/internal/poll"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// perfEvents are the file descriptors of a clock event on each CPU, with a program.
type perfEvents []int

// openPerfEvents makes each CPU run a program every 10 ms, in an interrupt.
func openPerfEvents(p *ebpf.Program) (io.Closer, error) {
	attr := unix.PerfEventAttr{Type: unix.PERF_TYPE_SOFTWARE, Config: unix.PERF_COUNT_SW_CPU_CLOCK, Sample: 10_000_000}
	var events perfEvents
	for cpu := range runtime.NumCPU() {
		fd, err := unix.PerfEventOpen(&attr, -1, cpu, -1, unix.PERF_FLAG_FD_CLOEXEC)
		if err == nil {
			events = append(events, fd)
			err = unix.IoctlSetInt(fd, unix.PERF_EVENT_IOC_SET_BPF, p.FD())
		}
		if err == nil {
			err = unix.IoctlSetInt(fd, unix.PERF_EVENT_IOC_ENABLE, 0)
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("perf event on CPU %d: %w", cpu, err), events.Close())
		}
	}
	return events, nil
}

// Close ends the runs of the program.
func (e perfEvents) Close() (err error) {
	for _, fd := range e {
		err = errors.Join(err, unix.Close(fd))
	}
	return err
}

// awaitWrites waits until a program of writerCode has made n writes.
func awaitWrites(t *testing.T, counter *ebpf.Map, n uint64) {
	t.Helper()
	var writes uint64
	poll.Eventually(t, fmt.Sprintf("%d writes of the program", n), func() bool {
		return counter.Lookup(uint32(0), &writes) == nil && writes >= n
	}, func() any { return writes })
}

// operateSysBPF makes n updates of the entry of 8 + 16 zero bytes by bpf_sys_bpf, in a program of type syscall.
func operateSysBPF(m *ebpf.Map, n int) error {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "sys_bpf", Type: ebpf.Syscall, Flags: unix.BPF_F_SLEEPABLE, License: "GPL", Instructions: sysBPFCode(m),
	})
	if err != nil {
		return err
	}
	defer p.Close()
	for range n {
		if code, err := p.Run(&ebpf.RunOptions{}); err != nil || code != 0 {
			return fmt.Errorf("update by bpf_sys_bpf: code %d, error %w", int32(code), err)
		}
	}
	return nil
}

// sysBPFCode is a program that updates an entry by bpf_sys_bpf, and returns its result. A union bpf_attr at -32 has the map,
// the address of the key at -64, that of the value at -56, and the flags.
func sysBPFCode(m *ebpf.Map) asm.Instructions {
	code := asm.Instructions{asm.Mov.Imm(asm.R1, 0)}
	for at := int16(-64); at < 0; at += 8 {
		code = append(code, asm.StoreMem(asm.RFP, at, asm.R1, asm.DWord))
	}
	return append(code,
		asm.StoreImm(asm.RFP, -32, int64(m.FD()), asm.Word),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -64), asm.StoreMem(asm.RFP, -24, asm.R2, asm.DWord),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -56), asm.StoreMem(asm.RFP, -16, asm.R2, asm.DWord),
		asm.Mov.Imm(asm.R1, unix.BPF_MAP_UPDATE_ELEM),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -32),
		asm.Mov.Imm(asm.R3, 32), asm.FnSysBpf.Call(),
		asm.Return())
}
